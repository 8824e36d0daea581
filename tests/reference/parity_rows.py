"""The runs that parity_test.py compares with the reference, as data: what to start, and what the reference is told."""

from __future__ import annotations

import dataclasses
import os

from comparison import Tolerance
from shapes import FLAVORS, Shape
from training import Recipe

# How a flavor is shrunk on titan_train's command line; keys are the fields of Shape.
OVERRIDE_FLAGS = {
    "dim": "--model.override.dim",
    "layers": "--model.override.n_layers",
    "heads": "--model.override.n_heads",
    "kv_heads": "--model.override.n_kv_heads",
    "multiple_of": "--model.override.multiple_of",
    "vocab": "--model.override.vocab_size",
}
FLOAT32 = ("--training.dtype=float32", "--training.mixed_precision_param=float32")
BFLOAT16 = ("--training.dtype=float32", "--training.mixed_precision_param=bfloat16")
SMALL = {"dim": 64, "layers": 2, "heads": 4, "kv_heads": 2, "multiple_of": 32}
UNGROUPED = SMALL | {"kv_heads": 4}
STEPS = 10 if os.environ.get("TITAN_TEST_FULL") else 4  # two of them warm up


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    family: str
    flavor: str = "debugmodel"
    sizes: dict[str, int] = dataclasses.field(default_factory=lambda: SMALL)
    recipe: Recipe = Recipe(steps=STEPS)
    local_batch: int = 2
    global_batch: int = 2
    length: int = 48
    precision: tuple[str, ...] = FLOAT32
    flags: tuple[str, ...] = ()
    tolerance: Tolerance = Tolerance()

    def shape(self, vocab: int) -> Shape:
        """The reference's model. The vocabulary follows the tokenizer, so it comes from the dump."""
        return FLAVORS[self.family][self.flavor].replace(**(self.sizes | {"vocab": vocab}))

    def command_line(self) -> list[str]:
        """Flags for titan_train. A decay ratio of 1 means what no ratio means: all time after the warm-up decays."""
        recipe = self.recipe
        words = [
            f"--model.name={self.family}",
            f"--model.flavor={self.flavor}",
            *(f"{OVERRIDE_FLAGS[key]}={value}" for key, value in self.sizes.items()),
            f"--optimizer.name={recipe.optimizer}",
            f"--optimizer.lr={recipe.lr}",
            f"--optimizer.beta1={recipe.beta1}",
            f"--optimizer.beta2={recipe.beta2}",
            f"--optimizer.eps={recipe.eps}",
            f"--optimizer.weight_decay={recipe.weight_decay}",
            f"--lr_scheduler.warmup_steps={recipe.warmup_steps}",
            f"--lr_scheduler.decay_type={recipe.decay_type}",
            f"--lr_scheduler.min_lr_factor={recipe.min_lr_factor}",
            f"--lr_scheduler.decay_ratio={1.0 if recipe.decay_ratio is None else recipe.decay_ratio}",
            f"--training.max_norm={recipe.max_norm}",
            f"--training.steps={recipe.steps}",
            f"--training.local_batch_size={self.local_batch}",
            f"--training.global_batch_size={self.global_batch}",
            f"--training.seq_len={self.length}",
            *(self.muon_words() if recipe.optimizer == "Muon" else []),
            *self.precision,
            "--training.device=cpu",
            "--debug.seed=7",
            "--metrics.log_freq=1",
            f"--debug.dump_steps={','.join(str(step) for step in range(1, recipe.steps + 1))}",
            "--debug.dump_logits",
            *self.flags,
        ]
        return words

    def muon_words(self) -> list[str]:
        recipe = self.recipe
        return [
            f"--optimizer.muon.lr={recipe.muon_lr}",
            f"--optimizer.muon.momentum={recipe.momentum}",
            f"--optimizer.muon.nesterov={str(recipe.nesterov).lower()}",
            f"--optimizer.muon.adjust_lr_fn={recipe.adjust_lr_fn}",
            f"--optimizer.muon.dtype={recipe.muon_dtype}",
        ]


TIED = SMALL | {"vocab": 4096}
FLOAT32_ROWS = (
    Row("llama2, every head its own key", "llama2", sizes=UNGROUPED),
    Row("llama2, grouped heads", "llama2"),
    Row("llama3, grouped heads", "llama3"),
    Row("llama3, every head its own key, for-loop optimizer", "llama3", sizes=UNGROUPED,
        flags=("--optimizer.implementation=for-loop",)),
    Row("llama3_1 over 193 positions, foreach optimizer", "llama3_1", length=193,
        flags=("--optimizer.implementation=foreach",)),
    Row("llama3_2, tied embeddings", "llama3_2", "1B", sizes=TIED),
    Row("llama3_2, odd sizes, Adam with a late cosine", "llama3_2", "3B",
        sizes={"dim": 96, "layers": 3, "heads": 6, "kv_heads": 3, "multiple_of": 8, "vocab": 3001},
        recipe=Recipe(steps=STEPS, optimizer="Adam", decay_ratio=0.6, decay_type="cosine", min_lr_factor=0.1)),
    Row("three microbatches a step", "llama3", local_batch=2, global_batch=6),
    Row("clipped hard, other betas", "llama3", recipe=Recipe(steps=STEPS, max_norm=0.05, beta1=0.8, beta2=0.99, eps=1e-6)),
    Row("Muon, clipped, ten steps", "llama3", recipe=Recipe(optimizer="Muon")),
    Row("Muon with AdamW's size of updates, without Nesterov", "llama3", global_batch=4,
        recipe=Recipe(steps=STEPS, optimizer="Muon", muon_lr=2e-3, min_lr_factor=0.5, nesterov=False,
                      adjust_lr_fn="match_rms_adamw")),  # with smaller rates, rounding of weights is more than 1e-5 of the update
    Row("everything recomputed", "llama3_1", flags=("--activation_checkpoint.mode=full",)),
    Row("documents kept apart", "llama3", "debugmodel_flex_attn", length=256, local_batch=2, global_batch=4),
)  # fmt: skip
BFLOAT16_ROWS = (  # all ten steps: the limits are those of a learning rate that has come down
    Row("llama3 in bfloat16", "llama3", precision=BFLOAT16, recipe=Recipe()),
    Row("llama3_1 of the debug model's depth in bfloat16", "llama3_1", precision=BFLOAT16,
        sizes=SMALL | {"dim": 128, "layers": 6}, global_batch=4, recipe=Recipe()),
)  # fmt: skip
