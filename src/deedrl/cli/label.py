"""``deedrl label``: a local web page on which people say which of two episodes is better."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deedrl.cli.options import RunArgument


def label(
    run: RunArgument,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Port to listen on.", min=1, max=65535)] = 8710,
    pairs: Annotated[int, typer.Option("--pairs", help="Most pairs to show.", min=1)] = 200,
    seed: Annotated[int, typer.Option("--seed", help="Draws pairs, their order and sides.", min=0)] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="File of labels. Default: RUN/labels.jsonl.")] = None,
) -> None:
    """Label pairs of a run's episodes by keyboard in a browser; they are appended to the run's labels.jsonl."""
    import importlib.util
    import secrets

    from deedrl.errors import ConfigError

    if missing := [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]:
        raise ConfigError(f"the label page needs {' and '.join(missing)}: pip install 'deedrl[label]'")
    import uvicorn

    from deedrl.labelling.app import LOOPBACK, LabelBook, label_app
    from deedrl.labelling.pairs import shown_pairs, training_episodes
    from deedrl.store.labels import LABELS

    found = shown_pairs(training_episodes(run), limit=pairs, seed=seed)
    if not found:
        raise ConfigError(
            f"{run}: expected two different episodes of one training task in its stores, found none; play some first"
        )
    local = host in LOOPBACK
    token = "" if local else secrets.token_urlsafe(24)
    app = label_app(LabelBook(found, out or run / LABELS), hosts=LOOPBACK if local else ("*",), token=token)
    query = f"?token={token}" if token else ""
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}/{query}"
    typer.echo(f"Pairs to label: {len(found)}. Open {address} (Ctrl-C ends)")
    uvicorn.run(app, host=host, port=port, log_level="warning", access_log=False, server_header=False)
