"""llama.cpp's server inside this process, turn by turn: 32 slots, prompts cached, the GGUF file as it is (4 bits).

Its weights are those from which the embedded model is read, so it does a quarter of the others' memory traffic.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import xllamacpp
from serving import play_turn_by_turn, read_work, serve

SLOTS = 32


def main() -> None:
    work = read_work()
    longest = max(
        len(episode["context"]) + sum(map(len, episode["extensions"])) + work["turns"] * work["new_tokens"]
        for episode in work["episodes"]
    )
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(next(Path(__file__).resolve().parents[3].glob(".peers/llamacpp/*.gguf")))
    parameters.n_parallel = SLOTS
    parameters.n_ctx = SLOTS * longest
    parameters.n_predict = work["new_tokens"]
    parameters.cont_batching = True
    parameters.cache_prompt = True
    parameters.warmup = False
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 2
    server = xllamacpp.Server(parameters)

    def turn(conversation: list[int]) -> list[int]:
        answer = server.handle_completions(
            {
                "prompt": conversation,
                "max_tokens": work["new_tokens"],
                "n_predict": work["new_tokens"],
                "ignore_eos": True,
                "cache_prompt": True,
                "temperature": work["temperature"],
                "top_k": 0,
                "top_p": 1.0,
                "min_p": 0.0,
                "return_tokens": True,
            }
        )
        return list(answer["tokens"])

    def sample(conversations: list[list[int]]) -> list[list[int]]:
        with ThreadPoolExecutor(len(conversations)) as pool:
            return list(pool.map(turn, conversations))

    serve(lambda: play_turn_by_turn(work, sample), xllamacpp=xllamacpp.__version__)


if __name__ == "__main__":
    main()
