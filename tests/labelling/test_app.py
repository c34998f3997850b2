"""The label page over HTTP: what is recorded, what is shown, and who is let in."""

from __future__ import annotations

from pathlib import Path

import pytest

from deedrl.store.labels import PairLabel, read_labels

pytest.importorskip("starlette")
pytest.importorskip("httpx")

from starlette.testclient import TestClient

from deedrl.labelling.app import LOOPBACK, LabelBook, label_app


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "labels.jsonl"


@pytest.fixture
def client(pairs, path):
    return TestClient(label_app(LabelBook(pairs, path), hosts=LOOPBACK), base_url="http://127.0.0.1:8710")


def named(client, name="anna"):
    client.post("/rater", data={"rater": name})
    return client


def choose(client, pair, choice, **headers):
    sides = {"left": pair.left.episode_id, "right": pair.right.episode_id}
    return client.post("/label", data={"choice": choice, **sides}, headers=headers, follow_redirects=False)


def labels(path):
    return [label for _, label in read_labels(path, PairLabel)]


def test_a_rater_says_who_they_are_first(client, path, pairs):
    assert "Who is rating?" in client.get("/").text
    assert choose(client, pairs[0], "left").status_code == 400
    assert client.post("/rater", data={"rater": "  "}).status_code == 400
    assert client.post("/rater", data={"rater": "x" * 61}).status_code == 400
    assert not path.exists()
    assert "Žofie · " in named(client, " Žofie ").get("/").text


def test_choices_are_appended_with_rater_time_and_sides_and_the_next_pair_comes(client, path, pairs):
    named(client)
    for number, choice in enumerate(("left", "tie", "skip")):
        page = client.get("/").text
        assert f"{number} of 3" in page
        assert pairs[number].left.episode_id in page
        assert choose(client, pairs[number], choice).status_code == 303
    assert "Every pair has a label of yours" in client.get("/").text
    found = labels(path)
    assert [(one.rater, one.choice) for one in found] == [("anna", "left"), ("anna", "tie"), ("anna", "skip")]
    assert [(one.left, one.right) for one in found] == [(p.left.episode_id, p.right.episode_id) for p in pairs]
    assert all(one.time.startswith("20") and one.time.endswith("+00:00") for one in found)


def test_undo_takes_back_the_last_label_and_shows_its_pair_again(client, path, pairs):
    named(client)
    assert "disabled" in client.get("/").text
    choose(client, pairs[0], "left")
    choose(client, pairs[1], "right")
    choose(client, pairs[2], "undo")
    assert [one.choice for one in labels(path)] == ["left", "right", "undo"]
    assert pairs[1].left.episode_id in client.get("/").text
    choose(client, pairs[1], "undo")
    assert "0 of 3" in client.get("/").text
    choose(client, pairs[1], "undo")
    assert len(labels(path)) == 4, "nothing is left to take back"


def test_raters_do_not_disturb_each_other_and_their_agreement_is_shown(client, path, pairs):
    named(client)
    for pair, choice in zip(pairs, ("left", "right", "left"), strict=True):
        choose(client, pair, choice)
    named(client, "ben")
    assert "0 of 3" in client.get("/").text
    for pair, choice in zip(pairs, ("left", "left", "left"), strict=True):
        choose(client, pair, choice)
    page = " ".join(client.get("/").text.split())
    assert "Agreement: 67 % of 3" in page
    assert "<td>anna, ben</td><td>3</td><td>2</td>" in page
    assert "2 of 3 judgements of the same pair are alike, in 3 pairs" in page


def test_H11_what_a_model_said_is_shown_as_text(client, pairs):
    named(client)
    for pair in pairs:
        page = client.get("/")
        if pair.left.task_id == "h":
            break
        choose(client, pair, "skip")
    assert "&lt;script&gt;document.title" in page.text
    assert "<script>document" not in page.text
    assert "<img" not in page.text
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    for address in ("/label.js", "/label.css"):
        assert client.get(address).status_code == 200
        assert client.get(address).headers["x-content-type-options"] == "nosniff"


def test_a_raters_name_is_text_too(client):
    page = named(client, "<b>x</b>").get("/").text
    assert "<b>x" not in page
    assert "&lt;b&gt;x" in page


@pytest.mark.parametrize(
    "fields",
    [{"choice": "best"}, {"choice": "left", "left": "a", "right": "b"}, {"choice": ""}, {"left": "x" * 20_000}],
)
def test_what_the_page_did_not_offer_is_refused(client, path, pairs, fields):
    named(client)
    sides = {"left": pairs[0].left.episode_id, "right": pairs[0].right.episode_id}
    assert client.post("/label", data={**sides, **fields}).status_code == 400
    assert not path.exists()


def test_another_site_can_neither_read_nor_label(client, path, pairs):
    named(client)
    assert client.get("/", headers={"host": "evil.example:8710"}).status_code == 403
    assert choose(client, pairs[0], "left", origin="http://evil.example").status_code == 403
    assert choose(client, pairs[0], "left", origin="null").status_code == 403
    assert not path.exists()
    assert choose(client, pairs[0], "left", origin="http://127.0.0.1:8710").status_code == 303
    assert client.get("/", headers={"host": "[::1]:8710"}).status_code == 200


def test_beyond_the_machine_nobody_comes_in_without_the_token(pairs, path):
    app = label_app(LabelBook(pairs, path), hosts=("*",), token="secret")
    client = TestClient(app, base_url="http://192.0.2.7:8710")
    for address in ("/", "/label.js", "/?token=guess"):
        assert client.get(address).status_code == 403
    assert client.post("/rater", data={"rater": "anna"}).status_code == 403
    page = client.get("/?token=secret")
    assert page.status_code == 200
    assert "token" not in str(page.url), "it is kept in a cookie and leaves the address bar"
    assert "Who is rating?" in client.get("/").text


def test_a_broken_file_of_labels_is_said_with_its_line(client, path):
    named(client)
    path.write_text("{}\n")
    answer = client.get("/")
    assert answer.status_code == 500
    assert "line 1: expected one label" in answer.text
