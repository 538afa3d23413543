"""Models of transformers, made from configurations."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

import offbeat as ob
from offbeat.core import names
from offbeat.core.errors import OffbeatError, SettingError
from offbeat.data.texts import windows
from offbeat.experiment.export import export
from offbeat.models.lora import LoRA
from offbeat.problems.supervised import Supervised

TEXTS = {str(i): f"{word} and {word}, said {i}; " * 40 for i, word in enumerate(("ham", "spam", "eggs", "toast"))}
GPT2 = {"config": "gpt2", "settings": {"n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 16}}
BERT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
LLAMA = {
    "config": "llama",
    "settings": {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
}


def problem(**options) -> Supervised:
    lora = options.pop("lora", None)
    return Supervised.split(windows(TEXTS, window=12), 4, model="huggingface", options=options, lora=lora)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("options", "lora"),
    [(GPT2, None), (GPT2, LoRA(2, targets="*.c_attn")), (LLAMA, LoRA(2, targets="*.q_proj"))],
    ids=["gpt2", "gpt2-lora", "llama-lora"],
)
def test_stacked_clients_are_those_alone(options: dict, lora: LoRA | None) -> None:
    pytest.importorskip("transformers")
    p = problem(**options, lora=lora)
    assert not p.unstackable
    w = p.initial() + 0.05 * torch.randn(3, p.dim, generator=torch.Generator().manual_seed(0))
    rows = p.oracle(range(3), range(3), 1, 4, False).gradient(w, 0)
    for i in range(3):
        alone = p.oracle([i], [i], 1, 4, False).gradient(w[i : i + 1], 0)[0]
        assert (rows[i] - alone).norm() < 1e-4 * alone.norm()


@pytest.mark.filterwarnings("default")
def test_a_folder_gives_its_weights(tmp_path) -> None:
    pytest.importorskip("transformers")
    made = problem(**GPT2)
    assert made.flat.module.inner.config.eos_token_id is None  # GPT-2's own, 50256, is no token of these data
    made.flat.module.inner.save_pretrained(tmp_path)
    again = problem(folder=str(tmp_path))
    assert torch.equal(again.initial(), made.initial())
    more = windows({name: text + "0123456789" * 9 for name, text in TEXTS.items()}, window=12)
    with pytest.raises(SettingError, match="the model knows 19 tokens, and the data have 25"):
        Supervised.split(more, 4, model="huggingface", options={"folder": str(tmp_path)})


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingError, match="give a folder with a model, or a config to make one"):
        problem()
    with pytest.raises(SettingError, match="folder = 'nowhere': is not there"):
        problem(folder="nowhere")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(SettingError, match=r"pip install 'offbeat\[llm\]'"):
        problem(**GPT2)


@pytest.mark.filterwarnings("default")
def test_a_setting_that_a_kind_of_model_has_not_is_refused() -> None:
    """transformers keeps what it does not know: `n_layers = 1` would make a GPT-2 of full size."""
    pytest.importorskip("transformers")
    with pytest.raises(SettingError, match=r"unknown setting of gpt2: 'n_layers'; did you mean 'n_layer'\?"):
        problem(config="gpt2", settings={"n_layers": 1})
    with pytest.raises(SettingError, match=r"has no such kind of model; did you mean 'gpt2'\?$"):
        problem(config="gtp2")


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"config": "t5", "settings": {}}, "task = 'causal': transformers has no such model of this kind"),
        ({"settings": GPT2["settings"] | {"vocab_size": 5}}, "the model knows 5 tokens, and the data have 19"),
        ({"settings": {"n_layer": "two"}}, "n_layer.*two"),
        ({"settings": GPT2["settings"] | {"n_positions": 8}}, "for tokens up to [0-9]+ and more, and for 12 positions"),
        ({"config": "bert", "settings": BERT}, "sees the tokens that it is to predict"),
    ],
)
def test_what_does_not_fit_the_data_or_the_task_is_one_line(changed: dict, said: str) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(OffbeatError, match=said) as found:
        problem(**GPT2 | changed)
    assert "\n" not in str(found.value)


@pytest.mark.filterwarnings("default")
def test_a_folder_is_found_next_to_the_experiment_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    problem(**GPT2).flat.module.inner.save_pretrained(tmp_path / "base")
    monkeypatch.setattr(names, "_searched", [tmp_path])
    assert problem(folder="base").dim


@pytest.mark.filterwarnings("default")
def test_a_decoder_that_classifies_stacks_and_one_that_cannot_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    data = {"x": torch.arange(800).view(80, 10) % 30, "y": torch.arange(80) % 3}
    options = {"config": "gpt2", "task": "classify", "settings": GPT2["settings"] | {"vocab_size": 30}}
    options["settings"]["pad_token_id"] = 0
    p = Supervised.split(data, 4, model="huggingface", options=options)
    assert not p.unstackable
    monkeypatch.setattr(type(p.flat.module), "forward", lambda self, x: x[x > 0].float().sum() + self.inner(x).logits)
    found = Supervised.split(data, 4, model="huggingface", options=options).unstackable
    assert "dynamic shape" in found or "vmap" in found


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("dora", [False, True])
def test_an_exported_model_is_the_one_that_was_trained(tmp_path: Path, dora: bool) -> None:
    """From its folder, adapters are part of the weights."""
    transformers = pytest.importorskip("transformers")
    lora = {"rank": 2, "targets": "*.c_attn", "dora": dora}
    file = tmp_path / "e.toml"
    file.write_text(
        f"""
until = {{ updates = 4 }}
[problem]
data = {{ topics = {{ window = 12 }} }}
clients = 4
model = {{ huggingface = {{ config = "gpt2", settings = {_inline(GPT2["settings"])} }} }}
lora = {_inline(lora)}
[timing]
exponential = {{ rate = 1.0 }}
[algorithm.fedbuff]
size = 2
local = {{ adamw = {{ lr = 0.05, steps = 2, batch = 2 }} }}
"""
    )
    (result,) = ob.load(file).run(tmp_path / "out", progress=False)
    export(tmp_path / "out" / "fedbuff-0", tmp_path / "hub", "hf")
    found = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hub", local_files_only=True).eval()
    tokens = torch.arange(12)[None]
    ours = result.module()
    with torch.no_grad():
        torch.testing.assert_close(found(tokens).logits, ours(tokens), rtol=1e-4, atol=1e-5)
        ours.inner.transformer.h[0].attn.c_attn.b.zero_()
        assert (found(tokens).logits - ours(tokens)).abs().max() > 1e-3


def _inline(table: dict) -> str:
    return "{ " + ", ".join(f"{key} = {json.dumps(value)}" for key, value in table.items()) + " }"


@pytest.mark.filterwarnings("default")
def test_texts_are_classified() -> None:
    pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    options = {"config": "bert", "task": "classify", "settings": {**sizes, "vocab_size": 30}}
    torch.manual_seed(0)
    data = {"x": torch.randint(30, (80, 10)), "y": torch.arange(80) % 3}
    p = Supervised.split(
        data, 4, model="huggingface", options=options, lora=LoRA(2, targets="*.query", also="*classifier*")
    )
    w = p.initial().expand(2, -1).clone()
    rows = p.oracle([0, 1], [0, 1], 1, 4, False).gradient(w, 0)
    alone = p.oracle([1], [1], 1, 4, False).gradient(w[1:], 0)[0]
    assert (rows[1] - alone).norm() < 1e-4 * alone.norm()


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("dora", [False, True])
def test_adapters_of_peft_are_a_module_like_any_other(dora: bool) -> None:
    peft = pytest.importorskip("peft")
    plain = problem(**GPT2)
    module = plain.flat.module
    chosen = peft.LoraConfig(
        r=2, target_modules=["c_attn"], fan_in_fan_out=True, use_dora=dora, init_lora_weights=False
    )
    module.inner = peft.get_peft_model(module.inner, chosen)
    p = Supervised.split(windows(TEXTS, window=12), 4, model=module)
    assert p.dim == 2 * 16 + 48 * 2 + (48 if dora else 0)
    w = p.initial().expand(2, -1).clone()
    rows = p.oracle([0, 1], [0, 1], 1, 4, False).gradient(w, 0)
    alone = p.oracle([1], [1], 1, 4, False).gradient(w[1:], 0)[0]
    assert (rows[1] - alone).norm() < 1e-4 * alone.norm()


@pytest.mark.filterwarnings("default")
def test_a_model_whose_output_has_its_scores_needs_no_wrapper() -> None:
    """What transformers and PEFT make gives an object; the loss is of its `.logits`."""
    pytest.importorskip("transformers")
    wrapped = problem(**GPT2)
    bare = Supervised.split(windows(TEXTS, window=12), 4, model=wrapped.flat.module.inner)
    w = wrapped.initial().expand(2, -1).clone()
    rows, same = (p.oracle([0, 1], [0, 1], 1, 4, False).gradient(w, 0) for p in (wrapped, bare))
    torch.testing.assert_close(same, rows)
