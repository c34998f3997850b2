"""vLLM's CPU build, turn by turn, with prefix caching: each turn's whole conversations, of which it knows the most."""

from __future__ import annotations

import os

# Read when vLLM is imported: key/value cache in GiB, and everything in this process, where its memory is counted.
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

from serving import play_turn_by_turn, read_work, serve  # first: vLLM prints while it is imported
from vllm import LLM, SamplingParams, __version__


def main() -> None:
    work = read_work()
    longest = max(
        len(episode["context"]) + sum(map(len, episode["extensions"])) + work["turns"] * work["new_tokens"]
        for episode in work["episodes"]
    )
    engine = LLM(
        model=work["model"],
        dtype=work["precision"],
        enable_prefix_caching=True,
        enforce_eager=True,
        max_model_len=longest,
        max_num_seqs=len(work["episodes"]),
        disable_log_stats=True,
    )
    # Log-probabilities of what was sampled, as training needs them.
    parameters = SamplingParams(
        temperature=work["temperature"], max_tokens=work["new_tokens"], ignore_eos=True, logprobs=0, detokenize=False
    )

    def sample(conversations: list[list[int]]) -> list[list[int]]:
        prompts = [{"prompt_token_ids": conversation} for conversation in conversations]
        return [list(result.outputs[0].token_ids) for result in engine.generate(prompts, parameters, use_tqdm=False)]

    def play() -> int:
        engine.reset_prefix_cache()  # each repetition begins with nothing, as ours does after an update
        return play_turn_by_turn(work, sample)

    serve(play, vllm=__version__)


if __name__ == "__main__":
    main()
