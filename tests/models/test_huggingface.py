"""Models of transformers, made from configurations."""

from __future__ import annotations

import sys

import pytest
import torch

from offbeat.core.errors import SettingError
from offbeat.data.texts import windows
from offbeat.models.lora import LoRA
from offbeat.problems.supervised import Supervised

TEXTS = {str(i): f"{word} and {word}, said {i}; " * 40 for i, word in enumerate(("ham", "spam", "eggs", "toast"))}
GPT2 = {"config": "gpt2", "settings": {"n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 16}}
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
    made.flat.module.inner.save_pretrained(tmp_path)
    again = problem(folder=str(tmp_path))
    assert torch.equal(again.initial(), made.initial())


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingError, match="give a folder with a model, or a config to make one"):
        problem()
    with pytest.raises(SettingError, match="folder = 'nowhere': is not there"):
        problem(folder="nowhere")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(SettingError, match=r"pip install 'offbeat\[llm\]'"):
        problem(**GPT2)


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
