"""transformers' `generate`, turn by turn: the whole conversations of all episodes as one left-padded batch."""

from __future__ import annotations

import torch
import transformers
from serving import play_turn_by_turn, read_work, serve
from transformers import AutoModelForCausalLM, GenerationConfig


def main() -> None:
    work = read_work()
    model = AutoModelForCausalLM.from_pretrained(work["model"], dtype=getattr(torch, work["precision"])).eval()
    padding = 0
    # Without an end token no turn ends before its last token.
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=work["temperature"],
        top_k=0,
        top_p=1.0,
        max_new_tokens=work["new_tokens"],
        pad_token_id=padding,
        eos_token_id=None,
    )

    @torch.inference_mode()
    def sample(conversations: list[list[int]]) -> list[list[int]]:
        longest = max(map(len, conversations))
        ids = torch.tensor([[padding] * (longest - len(one)) + one for one in conversations])
        seen = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in conversations])
        return model.generate(input_ids=ids, attention_mask=seen)[:, longest:].tolist()

    serve(lambda: play_turn_by_turn(work, sample), transformers=transformers.__version__, torch=torch.__version__)


if __name__ == "__main__":
    main()
