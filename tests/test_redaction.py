import pytest
from hypothesis import given
from hypothesis import strategies as st

from deedrl.redaction import REDACTED, holds_key, is_secret_name, loggable, mask_keys, redact, redact_text, strip_ansi

SHA256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
HEX40 = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    "name",
    [
        *("token", "hf_token", "HF_TOKEN", "accessToken", "api_key", "apiKey", "OPENAI_API_KEY", "openai-api-key"),
        *("password", "db.password", "client_secret", "Authorization", "credentials", "private_key", "WANDB_API_KEY"),
        *("replicate_token", "AWS_SECRET_ACCESS_KEY", "api_keys"),
    ],
)
def test_H14_secret_names(name):
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *("max_tokens", "token_ids", "tokens", "tokenizer", "eos_token", "pad_token", "loss_per_token", "token_count"),
        *("key", "keys", "primary_key", "sort_key", "api_key_env", "password_policy", "secretary", "config_hash", ""),
    ],
)
def test_H14_ordinary_names(name):
    assert not is_secret_name(name)


KEYS = [
    "sk-proj-Ab3dEfGh1jKlMnOpQrSt",
    "sk-abcdefghijklmnopqrstuvwx",
    "hf_AbCdEfGhIjKlMnOpQrStUvWx",
    "ghp_0123456789abcdefghij0123456789abcdef",
    "github_pat_0123456789abcdefghij_0123456789",
    "glpat-0123456789abcdefghij",
    "wandb_v1_0123456789abcdefghij",
    "gsk_0123456789abcdefghijABCDEFGHIJ",
    "r8_0123456789abcdefghijABCDEFGHIJ",
    "npm_0123456789abcdefghijABCDEFGHIJklmnop",
    "lsv2_pt_0123456789abcdef0123456789abcdef_0123456789",
    "sk_live_0123456789abcdefABCD",
    "nvapi-0123456789abcdefghij_ABCDEFGHIJ",
    "xai-0123456789abcdefghijABCDEFGHIJ",
    "pplx-0123456789abcdefghijABCDEFGHIJ",
    "pypi-AgEIcHlwaS5vcmcCJDAwMDAwMDAw",
    "AKIAIOSFODNN7EXAMPLE",
    "xoxb-1234567890-abcdef",
    "ASIAIOSFODNN7EXAMPLE",
    "AIzaSyA-0123456789abcdefghijklmnopqrstu",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
    "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----",
]


@pytest.mark.parametrize("key", KEYS)
def test_H14_key_shapes_are_masked_wherever_they_stand(key):
    assert mask_keys(f"see\n{key} here") == f"see\n{REDACTED} here"


def test_H14_bearer_token_keeps_the_word():
    assert mask_keys("Authorization: Bearer abcdef0123456789ABCDEF") == f"Authorization: Bearer {REDACTED}"


def test_H14_password_in_a_url():
    assert mask_keys("postgres://bob:hunter2@db/x") == f"postgres://{REDACTED}@db/x"


@pytest.mark.parametrize(
    "text",
    [
        SHA256,
        HEX40,
        "task-0123456789abcdef0123 desk-0123456789abcdefABCD",
        "sk-learn-compatible-estimators",
        "hf_model_name_or_path",
        "Bearer of good news",
        "http://host:8000/path@v2",
        "max_tokens=512 token_ids: 123456",
        "eos_token=<|im_end|>",
        "primary_key: order_number",
        "pypi-package-of-some-name npm_config_registry xai-explanations-of-models",
        "unexpected token: '}'; token 'a', 'b'",
        "--max-tokens 123456 --tokenizer somewhere/else",
    ],
)
def test_H14_ordinary_text_survives(text):
    assert redact_text(text) == text


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("WANDB_API_KEY=abcdef123456", f"WANDB_API_KEY={REDACTED}"),
        ("{'password': 'hunter2!'}", f"{{'password': '{REDACTED}'}}"),
        ("tracking.wandb.api_key: abcdef123456", f"tracking.wandb.api_key: {REDACTED}"),
        ("Authorization: Bearer abcdef", f"Authorization: {REDACTED}"),
        (f"wandb: API key {HEX40}", f"wandb: API key {REDACTED}"),
        (r"sent {\"api_key\": \"abcdef123456\", \"n\": 1}", rf"sent {{\"api_key\": \"{REDACTED}\", \"n\": 1}}"),
        ('{"passphrase": "correct horse battery", "n": 1}', f'{{"passphrase": "{REDACTED}", "n": 1}}'),
        ("{'token': 'abc', 'name': 'somebody'}", "{'token': 'abc', 'name': 'somebody'}"),
        ("api_key：abcdef123456", f"api_key：{REDACTED}"),
        ("curl --api-key abcdef123456 --verbose", f"curl --api-key {REDACTED} --verbose"),
        ("https://x/y?api_key=abcdef123456&b=1", f"https://x/y?api_key={REDACTED}&b=1"),
    ],
)
def test_H14_assignments_in_prose(text, safe):
    assert redact_text(text) == safe


def test_H14_nested_config():
    config = {
        "tracking": [{"name": "wandb", "api_key": "canary", "key": HEX40}],
        "model": {"max_tokens": 96, "eos_token": "<|im_end|>", "revision": HEX40},
        "credentials": {"user": "ann", "pin": 1234},
        "config_hash": SHA256,
        "password": 12345,
        "token": None,
    }
    assert redact(config) == {
        "tracking": [{"name": "wandb", "api_key": REDACTED, "key": REDACTED}],
        "model": {"max_tokens": 96, "eos_token": "<|im_end|>", "revision": HEX40},
        "credentials": {"user": REDACTED, "pin": REDACTED},
        "config_hash": SHA256,
        "password": REDACTED,
        "token": None,
    }


def test_H14_a_number_named_token_is_a_count():
    assert redact({"token": 5, "stop_token": "x"}) == {"token": 5, "stop_token": "x"}


def test_H14_id_lists_come_back_as_the_same_object():
    ids = list(range(100_000))
    assert redact({"token_ids": ids})["token_ids"] is ids


def test_H14_a_key_between_numbers_is_found():
    assert redact([1, "sk-0123456789abcdefghij", 2]) == [1, REDACTED, 2]


def test_H14_input_is_not_changed():
    config = {"api_key": "canary"}
    redact(config)
    assert config == {"api_key": "canary"}


def test_H14_long_words_take_linear_time():
    assert redact_text("a" * 300_000) == "a" * 300_000


def test_H11_H14_a_key_broken_up_by_escapes_is_found():
    assert loggable("\x1b[1mhf_abcdef\x1b[0mghij0123456789\r x") == f"{REDACTED} x"


INTRODUCED = ["Bearer abcdef0123456789ABCDEF", "postgres://bob:hunter2@db/x"]
PARTS = [
    *KEYS,
    *INTRODUCED,
    *"_-A: x",
    "hf_",
    "sk-",
    "gh",
    "s_",
    "AK",
    "earer ",
    "://",
    "eyJ",
    "xox",
    "0123456789abcdefghij",
]


@pytest.mark.parametrize("key", [*KEYS, *INTRODUCED])
def test_holds_key_of_each_shape(key):
    assert holds_key(key)
    assert holds_key(f"line\n{key}")


def test_holds_no_key():
    assert not holds_key("risk-free desk-work")


@given(st.lists(st.sampled_from(PARTS) | st.text(max_size=3), max_size=6).map("".join))
def test_holds_key_exactly_where_masking_changes_a_text(text):
    assert holds_key(text) == (mask_keys(text) != text)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("a\x1b[2Jb\x1b[1;1Hc", "abc"),
        ("\x9b31mred", "red"),
        ("good\rbad", "goodbad"),
        ("a\x08b\x00c\x7f", "abc"),
        ("\x1bc reset", " reset"),
        ("\x1b]0;never closed\nnext line", "\nnext line"),
        ("tab\tand\nnewline, Größe 潮汐 [31m", "tab\tand\nnewline, Größe 潮汐 [31m"),
    ],
)
def test_H11_strip_ansi(text, plain):
    assert strip_ansi(text) == plain
