"""The small GPT: what it sees, how it stacks, and what it writes."""

import pytest
import torch
from torch.nn import functional

import offbeat as ob
from offbeat.core.errors import ModelError, SettingError
from offbeat.data.texts import windows
from offbeat.models.build import build
from offbeat.models.gpt import GPT
from offbeat.problems.generate import generate
from offbeat.problems.supervised import Supervised

TEXTS = {str(i): f"{word} and {word}, said {i}; " * 60 for i, word in enumerate(("ham", "spam", "eggs", "toast"))}
SMALL = {"layers": 2, "heads": 2, "width": 16}


def problem(**options) -> Supervised:
    return Supervised.split(windows(TEXTS, window=12), 4, model="gpt", options={**SMALL, **options})


def test_a_place_does_not_see_what_comes_after_it():
    model = build("gpt", (12,), 30, seed=1, **SMALL)
    x = torch.randint(30, (2, 12))
    other = x.clone()
    other[:, 7:] = (other[:, 7:] + 1) % 30
    assert torch.allclose(model(x)[:, :7], model(other)[:, :7], atol=1e-6)
    assert not torch.allclose(model(x)[:, 7:], model(other)[:, 7:], atol=1e-3)


def test_attention_is_torchs():
    attention = build("gpt", (12,), 30, seed=1, **SMALL).blocks[0].attend
    h = torch.randn(3, 12, 16)
    query, key, value = attention.ask(h).view(3, 12, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
    wanted = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    assert torch.allclose(attention(h), attention.out(wanted.transpose(1, 2).reshape(3, 12, 16)), atol=1e-6)


def test_tied_weights_are_one_parameter():
    tied, apart = (build("gpt", (12,), 30, seed=1, **SMALL, tied=each) for each in (True, False))
    count = [sum(p.numel() for p in model.parameters()) for model in (tied, apart)]
    assert count[1] - count[0] == 30 * 16


@pytest.mark.parametrize("options", [{}, {"tied": False}, {"dropout": 0.1}])
def test_stacked_clients_are_those_alone(options):
    """Measured: at most 1e-6 relative; a wrong tie is off by a half."""
    p = problem(**options)
    assert p.stacks
    w = p.initial() + 0.05 * torch.randn(4, p.dim, generator=torch.Generator().manual_seed(0))
    rows = p.oracle(range(4), range(4), 1, 5, False).gradient(w, 0)
    for i in range(4):
        alone = p.oracle([i], [i], 1, 5, False).gradient(w[i : i + 1], 0)[0]
        assert (rows[i] - alone).norm() < 1e-5 * alone.norm()


def test_wrong_settings_are_one_line():
    with pytest.raises(SettingError, match="multiple of the heads"):
        problem(width=15)
    with pytest.raises(SettingError, match="windows have 12 tokens, more than its context"):
        problem(context=8)
    with pytest.raises(SettingError, match=r"windows of tokens \[places\], not \[1, 8, 8\]"):
        Supervised.split("digits", 2, model="gpt")


def test_bits_and_perplexity_are_of_each_token_of_the_test_windows():
    p = problem()
    found = p.measure(p.initial()[None])[0]
    test, model = p.data.test, build("gpt", (12,), p.data.classes, 0, **SMALL)
    model.load_state_dict(p.flat.state(p.initial()))
    scores = model(test["x"].long()).flatten(0, 1)
    nats = functional.cross_entropy(scores, test["y"].long().flatten()).detach()
    assert found["perplexity"] == pytest.approx(float(nats.exp()), rel=1e-5)
    assert found["bits_per_character"] == pytest.approx(float(nats / torch.tensor(2.0).log()), rel=1e-5)
    assert [score.name for score in p.metrics] == ["perplexity", "bits_per_character"]


def test_bits_per_character_need_text():
    with pytest.raises(SettingError, match=r"bits_per_character fails .* only the data texts, plays and topics tell"):
        Supervised.split("digits", 2, metrics=["bits_per_character"])


def test_a_trained_model_writes_what_it_has_read(tmp_path, monkeypatch):
    table = {
        "until": {"updates": 40},
        "problem": {"data": "test_gpt_text:load", "clients": 4, "model": {"gpt": SMALL}},
        "timing": {"exponential": {"rate": 10.0}},
        "algorithm": {"fedbuff": {"size": 2, "local": {"adamw": {"lr": 0.01, "steps": 10, "batch": 8}}}},
    }
    (tmp_path / "test_gpt_text.py").write_text(
        f"from offbeat.data.texts import windows\n\ndef load():\n    return windows({TEXTS!r}, window=12)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    ob.Experiment.parse(table).run(tmp_path / "out", progress=False)
    written = (tmp_path / "out/fedbuff-0/generated.txt").read_text()
    prompt, text = written.split("¦")
    assert prompt in TEXTS["0"]
    assert len(text) == 201
    assert sum(word in text for word in ("and", "said")) == 2
    for page in ("report.md", "report.html"):
        assert "Generated text" in (tmp_path / "out" / page).read_text()


def test_the_same_seed_writes_the_same_and_only_text_is_written():
    p = problem()
    assert generate(p, p.initial(), length=20) == generate(p, p.initial(), length=20)
    assert generate(p, p.initial(), length=20) != generate(p, p.initial(), length=20, seed=1)
    assert generate(p, p.initial(), prompt="ham and", length=3, temperature=0.0).prompt == "ham and"
    digits = Supervised.split("digits", 2)
    with pytest.raises(ModelError, match="does not predict the next token of text"):
        generate(digits, digits.initial())
    with pytest.raises(SettingError, match="temperature = -1: must be a number, 0 or above"):
        generate(p, p.initial(), temperature=-1)
    with pytest.raises(SettingError, match="length = -5: must be at least 0"):
        generate(p, p.initial(), length=-5)


def test_a_longer_text_than_the_context_is_refused():
    with pytest.raises(ValueError, match="13 tokens are more than the context of 12"):
        GPT((12,), 30, **SMALL)(torch.zeros(1, 13, dtype=torch.long))
