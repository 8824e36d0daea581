"""debug.attention_kernel: the attention kernel of a GPU that a run uses instead of the fastest."""

from __future__ import annotations

from mock_gpu import BF16, MockGpu
from program import BAD_CONFIG

DOCUMENTS = "--model.flavor=debugmodel_flex_attn"
FP32 = "--training.mixed_precision_param=float32"


# What the kernels are called on the device.
LAUNCHED = {"cudnn": "cuDNN plan", "flash": "pytorch_flash::flash_", "efficient": "fmha_cutlass"}


class AskedKernel(MockGpu):
    def test_the_kernel_that_is_named_is_used_and_no_other(self):
        for asked, name in (("cudnn", "cuDNN"), ("flash", "flash"), ("efficient", "memory-efficient")):
            with self.subTest(asked):
                run = self.on_gpu(BF16, f"--debug.attention_kernel={asked}", "--training.steps=3")
                self.assertIn(f"Attention by {name}, as debug.attention_kernel says", run.output)
                kernels = run.ledgers[0]["kernels"]
                used = {kernel for kernel, launched in LAUNCHED.items() if any(launched in called for called in kernels)}
                self.assertEqual(used, {asked})
        run = self.on_gpu(FP32, "--debug.attention_kernel=efficient", "--training.steps=1")
        self.assertIn("Attention by memory-efficient, as debug.attention_kernel says", run.output)

    def test_a_kernel_that_cannot_run_is_refused_by_name(self):
        rows = {
            "cuDNN's gradients vary": ["--debug.attention_kernel=cudnn", BF16, "--debug.deterministic"],
            "document lengths vary": ["--debug.attention_kernel=cudnn", BF16, DOCUMENTS],
            "fp32 attention has the efficient kernel only": ["--debug.attention_kernel=flash", FP32],
            "cuDNN does not take heads of 256": ["--debug.attention_kernel=cudnn", BF16, "--model.override.dim=512",
                                                 "--model.override.n_heads=2"],
        }  # fmt: skip
        for reason, options in rows.items():
            with self.subTest(reason):
                run = self.on_gpu(*options, "--training.steps=1", code=BAD_CONFIG)
                self.assertRegex(run.errors, rf'debug.attention_kernel = "\w+" cannot be used: {reason}')

    def test_heads_that_no_kernel_takes_are_refused_before_the_first_step(self):
        odd = ["--model.override.dim=252", "--model.override.n_heads=6", "--model.override.n_kv_heads=3",
               "--model.override.head_dim=42"]  # fmt: skip
        large = ["--model.override.dim=320", "--model.override.n_heads=1", "--model.override.n_kv_heads=1",
                 "--model.override.head_dim=320"]  # fmt: skip
        deterministic = "--debug.deterministic"
        for words in ([FP32, *odd], [BF16, *odd], [BF16, deterministic, *odd], [BF16, DOCUMENTS, *odd],
                      [BF16, deterministic, *large]):  # fmt: skip
            with self.subTest(" ".join(words)):
                run = self.on_gpu(*words, "--training.steps=1", code=BAD_CONFIG)
                self.assertRegex(run.errors, r"attention .*takes \[\d+, \d+, \d, (42|320)\] with \d heads of keys: \S")
                self.assertIn('training.device = "cpu" takes any size of head', run.errors)
        self.train(FP32, *odd, "--training.steps=1", "--training.device=cpu")

    def test_a_cpu_has_none_of_them(self):
        run = self.train("--debug.attention_kernel=flash", "--training.device=cpu", exit_code=BAD_CONFIG)
        self.assertIn('debug.attention_kernel = "flash" cannot be used: a CPU has one attention kernel', run.errors)
