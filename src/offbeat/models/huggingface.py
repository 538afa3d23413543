"""Models of HuggingFace's transformers, from a local folder or from a configuration; nothing is downloaded."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from offbeat.core.errors import SettingError, not_installed

_CLASSES = {"causal": "AutoModelForCausalLM", "classify": "AutoModelForSequenceClassification"}


class HuggingFace(nn.Module):
    """Scores of a model of transformers: whole numbers [b, t] to [b, t, tokens], or to [b, classes].

    folder: what `save_pretrained` wrote; its weights are read from safetensors alone.
    config: the name of a kind of model, such as "gpt2", to make one with random weights.
    task: "causal": the next token at every place, "classify": a class for each text.
    settings: of the configuration, such as { n_layer = 2, n_head = 2, n_embd = 32 }; only with config.
    """

    def __init__(
        self,
        shape: Sequence[int],
        classes: int,
        folder: str | None = None,
        config: str | None = None,
        task: Literal["causal", "classify"] = "causal",
        settings: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if (folder is None) == (config is None):
            raise SettingError("give a folder with a model, or a config to make one, not both")
        if folder is not None and (settings or not Path(folder).is_dir()):
            raise SettingError(f"folder = {folder!r}: " + ("settings go with config" if settings else "is not there"))
        found = _package()
        make = getattr(found, _CLASSES[task])
        heads = {"num_labels": classes} if task == "classify" else {}
        # attention in the form that torch.vmap can stack
        if folder is not None:
            given = {"local_files_only": True, "use_safetensors": True, "attn_implementation": "eager", **heads}
            self.inner: Any = make.from_pretrained(folder, trust_remote_code=False, **given)
        else:
            sizes = {"vocab_size": classes} if task == "causal" else heads
            made = found.AutoConfig.for_model(config, **sizes, **(settings or {}))
            self.inner = make.from_config(made, attn_implementation="eager")
        self.inner.config.use_cache = False
        self.inner.train()

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.inner(input_ids=x, use_cache=False).logits
        return scores


def _package() -> Any:
    try:
        return importlib.import_module("transformers")
    except ImportError:
        raise not_installed("the model huggingface needs transformers", "llm") from None
