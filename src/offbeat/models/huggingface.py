"""Models of HuggingFace's transformers, from a local folder or from a configuration; nothing is downloaded."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from offbeat.core import names
from offbeat.core.errors import SettingError, not_installed, unknown

_CLASSES = {"causal": "AutoModelForCausalLM", "classify": "AutoModelForSequenceClassification"}
_WITHOUT_DEFAULT = {"head_dim", "partial_rotary_factor", "rope_theta", "rotary_pct"}  # that some kinds read, if given
_WARNS = "warn_if_padding_and_no_attention_mask"


class HuggingFace(nn.Module):
    """Scores of a model of transformers: whole numbers [b, t] to [b, t, tokens], or to [b, classes].

    folder: what `save_pretrained` wrote, by its path or next to the experiment file; its weights are read from
        safetensors alone.
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
        place = None if folder is None else names.placed(folder)
        if place is not None and (settings or not place.is_dir()):
            raise SettingError(f"folder = {folder!r}: " + ("settings go with config" if settings else "is not there"))
        found = _package()
        make = getattr(found, _CLASSES[task])
        heads = {"num_labels": classes} if task == "classify" else {}
        # attention in the form that torch.vmap can stack
        if place is not None:
            given = {"local_files_only": True, "use_safetensors": True, "attn_implementation": "eager", **heads}
            self.inner: Any = _made(make.from_pretrained, place, task, trust_remote_code=False, **given)
        else:
            # the tokens of the data have no beginning and no end of a text, which transformers would warn about
            sizes = {"vocab_size": classes, "bos_token_id": None, "eos_token_id": None} if task == "causal" else heads
            made = _configured(found, str(config), sizes, settings or {})
            self.inner = _made(make.from_config, made, task, attn_implementation="eager")
        known = getattr(self.inner.config, "vocab_size", classes)
        if task == "causal" and known < classes:
            raise SettingError(f"the model knows {known:,} tokens, and the data have {classes:,}")
        self.inner.config.use_cache = False
        for layer in self.inner.modules():  # a warning that looks at tokens' values, as torch.vmap cannot
            if hasattr(layer, _WARNS):
                setattr(layer, _WARNS, _quiet)
        self.inner.train()

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.inner(input_ids=x, use_cache=False).logits
        return scores

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the model of transformers, for `from_pretrained`."""
        self.inner.save_pretrained(folder)


def _quiet(*_: object) -> None:
    """In place of a warning."""


def _made(make: Callable[..., Any], source: Any, task: str, **given: Any) -> Any:
    """A model from a folder or a configuration, unless its kind cannot do the task."""
    try:
        return make(source, **given)
    except ValueError as error:
        if "Unrecognized configuration class" not in str(error):
            raise
        raise SettingError(f"task = {task!r}: transformers has no such model of this kind; name another kind") from None


def _configured(found: Any, kind: str, sizes: dict[str, Any], settings: dict[str, Any]) -> Any:
    """A configuration; transformers itself keeps settings that a kind of model never reads, such as misspelt ones."""
    kinds = found.CONFIG_MAPPING
    if kind not in kinds:
        near = difflib.get_close_matches(kind, [*kinds.keys()], n=1)
        raise SettingError(
            f"transformers {found.__version__} has no such kind of model"
            + "".join(f"; did you mean {n!r}?" for n in near)
        )
    plain = found.AutoConfig.for_model(kind)
    for name in settings:
        if not hasattr(plain, name) and name not in _WITHOUT_DEFAULT:
            raise unknown(f"setting of {kind}:", name, [n for n in vars(plain) if not n.startswith("_")])
    return found.AutoConfig.for_model(kind, **sizes | settings)


def _package() -> Any:
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise not_installed(f"the model huggingface needs transformers ({error})", "llm") from None
