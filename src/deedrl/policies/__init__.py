"""Policies: what samples completions. The local model lives in `deedrl.policies.local`, which needs torch."""
