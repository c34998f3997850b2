"""llama.cpp's server inside this process, turn by turn: a slot an episode, the GGUF file as it is (Q4_1).

Its weights are those from which the embedded model is read, so it moves a quarter of the others' bytes. A slot keeps
what it has read, so a turn costs its new tokens only; slots share nothing, so each reads the system prompt itself.
"""

from __future__ import annotations

import json
import os
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import xllamacpp
from serving import play_turn_by_turn, read_work, serve


def server_for(work: dict[str, Any], model: Path) -> xllamacpp.Server:
    episodes = work["episodes"]
    longest = max(len(one["context"]) + sum(map(len, one["extensions"])) for one in episodes)
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(model)
    parameters.n_parallel = len(episodes)
    parameters.n_ctx = len(episodes) * (longest + work["turns"] * work["new_tokens"])
    parameters.cache_ram_mib = 0  # slots keep their own prompts; a second copy of them would only cost memory
    parameters.warmup = False
    threads = len(os.sched_getaffinity(0))
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
    return xllamacpp.Server(parameters)


def main() -> None:
    work = read_work()
    model = next(Path(__file__).resolve().parents[3].glob(".peers/llamacpp/*.gguf"))
    server = server_for(work, model)
    pool = ThreadPoolExecutor(len(work["episodes"]))

    def turn(slot: int, conversation: list[int]) -> list[int]:
        first = len(conversation) == len(work["episodes"][slot]["context"])
        answer = completion(
            server.listening_address,
            {
                "prompt": conversation,
                "id_slot": slot,
                "cache_prompt": not first,  # each repetition begins with nothing, as ours does after an update
                "n_predict": work["new_tokens"],
                "ignore_eos": True,
                "return_tokens": True,
                "samplers": ["temperature"],
                "temperature": work["temperature"],
            },
        )
        # The last sampled token is read with the next turn, so a turn knows all but that.
        if (answer["timings"]["cache_n"] == 0) != first or answer["truncated"]:
            raise RuntimeError(f"turn of slot {slot} did not find its cache as it should: {answer['timings']}")
        return list(answer["tokens"])

    def sample(conversations: list[list[int]]) -> list[list[int]]:
        return list(pool.map(turn, range(len(conversations)), conversations))

    serve(
        lambda: play_turn_by_turn(work, sample),
        xllamacpp=xllamacpp.__version__,
        model=model.name,
        build=xllamacpp.get_system_info(),
    )


def completion(address: str, request: dict[str, Any]) -> dict[str, Any]:
    """llama.cpp's own form of a completion: `handle_completions` answers in OpenAI's, which has no tokens."""
    data = json.dumps(request).encode()
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{address}/completion", data, headers)) as answer:
        return json.load(answer)


if __name__ == "__main__":
    main()
