"""The GPU's side of the program on a mock GPU (tests/mock_cuda): real LibTorch, real streams, graphs, allocator and
launches, and kernels that compute nothing. It shows what a step asks of a GPU, not what comes out of it."""

from __future__ import annotations

import pathlib
import shutil
import unittest

import safetensors.torch
from mock_gpu import BF16, FLOAT8, FUSED, MockGpu
from program import BAD_CONFIG, VALIDATION

DOCUMENTS = "--model.flavor=debugmodel_flex_attn"
OFFLOAD = "--training.enable_cpu_offload"
GRADIENTS = "--training.gradient_dtype=bfloat16"
TIED = ["--model.name=llama3_2", "--model.flavor=1B", "--model.override.dim=256", "--model.override.n_layers=4",
        "--model.override.n_heads=8", "--model.override.n_kv_heads=4"]  # fmt: skip


class EveryPath(MockGpu):
    """What a real GPU would refuse is trouble: launches of impossible sizes, calls that a recording forbids, float8
    products of shapes that cuBLAS does not take, memory given back twice."""

    def test_one_gpu(self):
        rows = {
            "plain": [],
            "fused": [FUSED],
            "float8": [FUSED, FLOAT8],
            "float8, plain": [FLOAT8],
            "rowwise": [FUSED, FLOAT8, "--quantize.linear.float8.recipe_name=rowwise"],
            "rowwise, weights' gradients in bf16": [FLOAT8, "--quantize.linear.float8.recipe_name=rowwise_with_gw_hp"],
            "bf16 states": [FUSED, "--training.dtype=bfloat16", "--optimizer.state_dtype=bfloat16"],
            "bf16 gradients": [FUSED, BF16, GRADIENTS],
            "bf16 gradients and states, float8": [FUSED, BF16, GRADIENTS, FLOAT8, "--training.dtype=bfloat16",
                                                  "--optimizer.state_dtype=bfloat16"],
            "bf16 gradients, plain, foreach": [BF16, GRADIENTS, "--optimizer.implementation=foreach"],
            "bf16 gradients, Muon, dump": [FUSED, BF16, GRADIENTS, "--optimizer.name=Muon", "--debug.dump_steps=2"],
            "foreach": ["--optimizer.implementation=foreach"],
            "for-loop": ["--optimizer.implementation=for-loop"],
            "several microbatches": [FUSED, "--training.global_batch_size=32"],
            "deterministic": [FUSED, "--debug.deterministic"],
            "groups of one": [FUSED, "--debug.groups_of_one"],
            "everything offloaded": [FUSED, OFFLOAD],
            "optimizer offload": [FUSED, "--optimizer.offload"],
            "optimizer in backward": [FUSED, "--optimizer.early_step_in_backward", "--training.max_norm=0"],
            "float8, several microbatches": [FUSED, FLOAT8, "--training.global_batch_size=32"],
            "float8, weights cast again": [FUSED, FLOAT8, "--quantize.linear.float8.force_recompute_fp8_weight_in_bwd"],
            "float8, tokens that are no multiple of 16": [FUSED, FLOAT8, "--training.seq_len=127",
                                                          "--training.local_batch_size=3"],
            "activation offload": [FUSED, "--activation_checkpoint.mode=full", "--activation_checkpoint.offload"],
            "recompute": [FUSED, "--activation_checkpoint.mode=selective",
                          "--activation_checkpoint.selective_ac_option=norm,swiglu"],
            "validation": [FUSED, *VALIDATION, "--validation.freq=2", "--validation.steps=2"],
            "profiler": [FUSED, "--profiling.enable_profiling", "--profiling.profile_freq=4"],
            "documents": [DOCUMENTS],
            "documents, fused, recomputed": [DOCUMENTS, FUSED, BF16, "--activation_checkpoint.mode=full"],
            "documents, attention kept": [DOCUMENTS, FUSED, BF16, "--activation_checkpoint.mode=selective",
                                          "--activation_checkpoint.selective_ac_option=op"],
            "documents, float8": [DOCUMENTS, FUSED, FLOAT8, "--data.packing=document"],
        }  # fmt: skip
        for name, words in rows.items():
            with self.subTest(name):
                run = self.on_gpu(*words, "--training.steps=4")
                self.assertGreater(len(run.ledgers[0]["kernels"]), 10)

    def test_several_gpus(self):
        tensor, pipeline, context = (
            f"--parallelism.{kind}_parallel_degree=2" for kind in ("tensor", "pipeline", "context")
        )
        shards = "--parallelism.data_parallel_shard_degree=2"
        copies = ["--parallelism.data_parallel_replicate_degree=2"]
        rows = {
            "fsdp": (2, []),
            "fsdp, offloaded": (2, [OFFLOAD]),
            "fsdp, offloaded, dump": (2, [OFFLOAD, "--debug.dump_steps=2"]),
            "pipeline, dump": (2, [pipeline, "--debug.dump_steps=2"]),
            "pipeline, tied, offloaded": (2, [pipeline, OFFLOAD, *TIED]),
            "fsdp, float8 gathered": (2, [FLOAT8, "--quantize.linear.float8.enable_fsdp_float8_all_gather",
                                          "--quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp"]),
            "ddp, float8, several microbatches": (2, [*copies, "--parallelism.data_parallel_shard_degree=1", FLOAT8,
                                                       "--training.global_batch_size=32"]),
            "pipeline, float8": (2, [pipeline, FLOAT8]),
            "context, float8": (2, [context, FLOAT8]),
            "ddp": (2, [*copies, "--parallelism.data_parallel_shard_degree=1"]),
            "hsdp": (4, [*copies, shards]),
            "tensor": (2, [tensor]),
            "tensor, float8": (2, [tensor, FLOAT8]),
            "tensor, overlapped": (2, [tensor, "--parallelism.enable_async_tensor_parallel"]),
            "tensor, overlapped, float8": (2, [tensor, FLOAT8, "--parallelism.enable_async_tensor_parallel"]),
            "context": (2, [context]),
            "context, all to all": (2, [context, "--parallelism.context_parallel_rotate_method=alltoall"]),
            "documents, fsdp": (2, [DOCUMENTS, BF16]),
            "documents, tensor": (2, [DOCUMENTS, BF16, tensor]),
            "documents, context": (2, [DOCUMENTS, BF16, context]),
            "documents, pipeline": (2, [DOCUMENTS, BF16, pipeline, "--data.packing=document"]),
            "1F1B": (2, [pipeline, "--parallelism.pipeline_parallel_schedule=1F1B"]),
            "ZBV": (2, [pipeline, "--parallelism.pipeline_parallel_schedule=ZBVZeroBubble"]),
            "fsdp, tensor and pipeline": (8, [shards, tensor, pipeline]),
        }  # fmt: skip
        # One for ranks that are the same, and another for what is under way beside other calls: gathers, keys and values,
        # a pipeline's stream.
        communicators = {"fsdp": {"of 2": 2}, "ddp": {"of 2": 1}, "hsdp": {"of 2": 3, "of 4": 1}, "tensor": {"of 2": 1},
                         "context": {"of 2": 3}, "1F1B": {"of 2": 2}}  # fmt: skip
        for name, (ranks, words) in rows.items():
            with self.subTest(name):
                run = self.on_gpu(*words, FUSED, "--training.steps=4", ranks=ranks)
                self.assertEqual(len([ledger for ledger in run.ledgers if "kernels" in ledger]), ranks)
                for ledger in run.ledgers if name in communicators else []:
                    made = {size: count["times"] for size, count in ledger["communicators"].items()}
                    self.assertEqual(made, communicators[name])

    def test_a_trace_begins_and_ends_when_the_gpu_has_done_what_was_enqueued(self):
        traced = [FUSED, "--profiling.enable_profiling", "--profiling.profile_freq=4", "--profiling.profiler_warmup=1"]
        waits = {}
        for name, words in (("without", [FUSED]), ("two traces", traced)):
            run = self.on_gpu(*words, "--training.steps=8", MOCK_CUDA="late")
            waits[name] = run.ledgers[0]["waits"].get("cudaDeviceSynchronize", {"times": 0})["times"]
        self.assertEqual(waits["two traces"] - waits["without"], 2 * 2)

    def test_work_that_is_done_as_late_as_cuda_allows_ends_the_same(self):
        late = {"MOCK_CUDA": "late"}
        saving = ["--checkpoint.enable", "--checkpoint.interval=2"]
        for words in ([], [FUSED], [FUSED, OFFLOAD], [*saving, "--checkpoint.async_mode=async"],
                      [*saving, "--checkpoint.async_mode=async_with_pinned_mem"]):  # fmt: skip
            with self.subTest(words):
                self.on_gpu(*words, "--training.steps=5", **late)
        self.on_gpu(FUSED, "--training.steps=4", ranks=2, **late)


# Launches of a step of Llama 3.1 8B on one GPU by kernel: of each of its 32 layers, and others. The loss is in 8 chunks.
LAYERS, LOSS_CHUNKS = 32, 8
# Query, key and value are one product, and so are gate and up; in float8 each weight has a scale and a product of its own.
PRODUCTS, FLOAT8_PRODUCTS = (4 * 3, 8 * 3), (7 * 3, 8 * 3)
LAUNCHES = {
    "cuDNN plan": (2, 0),
    "rms_norm_forward_kernel": (2, 1),
    "rms_norm_backward_kernel": (2, 1),
    "CUDAFunctor_add<c10::BFloat16>": (1, 0),  # what closes a block
    "rotate_kernel": (2, 0),
    "swiglu_forward_kernel": (1, 0),
    "swiglu_backward_kernel": (1, 0),
    "direct_copy_kernel_cuda": (1, 14),  # the values' gradient beside those of queries and keys; single numbers
    "cross_entropy_kernel": (0, 8),
    "vectorized_gather_kernel": (0, 1),  # the embedding
    "embedding_gradient_kernel": (0, 1),
    "exact_squares_kernel": (1, 2),
    "bf16_adam_kernel": (9, 3),
}
# Each operand is cast once for its two uses, attention's output twice. Amaxes of attention's output and of the values'
# gradient take a kernel of their own; the optimizer finds those of the weights. A product in float8 cannot add to the one
# before it.
FLOAT8_LAUNCHES = LAUNCHES | {
    "float8_cast_kernel": (3 + 2 + 7 + 7, 0),
    "largest_kernel": (2, 0),
    "CUDAFunctor_add<c10::BFloat16>": (1 + 3, 0),
    "direct_copy_kernel_cuda": (0, 15),  # one more number: whether the step is skipped, for the slots of the amaxes
}


class ExpectedLaunches(MockGpu):
    """A step's kernels are those whose time docs/benchmarks/h200_expected.md predicts, and no more."""

    def test_bf16(self):
        self.check(LAUNCHES, PRODUCTS, [FUSED])

    def test_gradients_in_bf16(self):
        """Products, norms and the optimizer write and read them as they are: nothing casts."""
        self.check(LAUNCHES, PRODUCTS, [FUSED, GRADIENTS])
        self.check(FLOAT8_LAUNCHES, FLOAT8_PRODUCTS, [FUSED, FLOAT8, GRADIENTS])

    def test_float8(self):
        self.check(FLOAT8_LAUNCHES, FLOAT8_PRODUCTS, [FUSED, FLOAT8])

    def check(self, launches: dict[str, tuple[int, int]], of_products: tuple[int, int], words: list[str]) -> None:
        one, two = (self.llama_8b(*words, steps=steps).ledgers[0] for steps in (1, 2))
        difference = lambda kind, name, what: two[kind][name][what] - one.get(kind, {}).get(name, {}).get(what, 0)  # noqa: E731
        products = sum(difference("products", name, "times") for name in two["products"])
        self.assertEqual(products, LAYERS * of_products[0] + of_products[1])
        # Their results are read as well as written, which the trace of the head counts.
        added = sum(difference("products", name, "times") for name in two["products"] if " added to fp32, " in name)
        self.assertEqual(added, LOSS_CHUNKS - 1)
        by_kernel = {kernel: LAYERS * each + once for kernel, (each, once) in launches.items()}
        others = {}
        for name in two["kernels"]:
            kernel = next((kernel for kernel in by_kernel if kernel in name), None)
            if kernel:
                by_kernel[kernel] -= difference("kernels", name, "times")
            else:
                others[name] = difference("kernels", name, "amount")
        self.assertEqual({kernel: left for kernel, left in by_kernel.items() if left}, {})
        # The others are small, but for the zeros of the embedding's gradient: threads of all of their launches.
        zeros = next(name for name in others if "FillFunctor<float>" in name)
        self.assertLess(others.pop(zeros), 66e6)  # four numbers each, of 128,256 x 4,096
        self.assertLess(sum(others.values()), 8e6, others)
        self.assertLess(sum(difference("copies", name, "amount") for name in two["copies"]), 1e6)


class Waits(MockGpu):
    def test_a_step_waits_for_its_numbers_alone(self):
        rows = (([], 1), ([FUSED], 1), ([FUSED, FLOAT8], 1), ([FUSED, "--debug.sync_check"], 1), ([FUSED], 2))
        for words, ranks in rows:
            with self.subTest(words=words, ranks=ranks):

                def run(steps, words=words, ranks=ranks):
                    return self.on_gpu(*words, f"--training.steps={steps}", ranks=ranks)

                # One event a step; of several ranks another, behind it, for what they compare.
                self.assertEqual(self.a_step_more(run, "waits", 6), {"cudaEventSynchronize": ranks})

    def test_no_memory_is_asked_for_once_steps_are_alike(self):
        def run(steps):
            return self.on_gpu(FUSED, f"--training.steps={steps}", ranks=2)

        self.assertEqual(self.a_step_more(run, "allocations", 6), {})


class OffloadedWeights(MockGpu):
    """training.enable_cpu_offload: gradients leave for the host while backward goes on, and the optimizer waits once."""

    def test_a_step_waits_once_more_than_one_whose_optimizer_is_on_the_gpu(self):
        pipeline = "--parallelism.pipeline_parallel_degree=2"
        rows = (([], 1), ([FUSED, "--debug.sync_check"], 1), (["--training.global_batch_size=32"], 1), ([FUSED], 2),
                ([BF16, "--debug.sync_check"], 2), ([pipeline], 2))  # fmt: skip
        for words, ranks in rows:
            with self.subTest(words=words, ranks=ranks):

                def run(steps, words=words, ranks=ranks):
                    return self.on_gpu(OFFLOAD, *words, f"--training.steps={steps}", ranks=ranks)

                self.assertEqual(self.a_step_more(run, "waits", 6), {"cudaEventSynchronize": ranks + 1})

    def test_gradients_that_the_host_reads_are_those_of_their_block_and_step(self):
        """Every product of a weight's gradient leaves a number that no other leaves, in the order of the launches."""
        for words in ([], [FUSED], ["--training.global_batch_size=32"]):
            with self.subTest(words=words):
                at_once, late = (self.dumps(order, words) for order in ("at once", "late"))
                self.assertEqual(at_once, late)
                numbers = [value for step in at_once for values in step.values() for value in values - {0.0}]
                self.assertEqual(len(at_once), 3)
                self.assertGreaterEqual(len(set(numbers)), 3 * 6 * 4, "of six blocks with four products")

    def test_weights_and_gradients_of_several_ranks_too(self):
        command = [self.mock.parents[1] / "parallel_test", "--gtest_filter=*OffloadedGradients*Gpu*"]
        for order in ("at once", "late"):
            with self.subTest(order=order):
                run = self.on_mock(command, self.fresh_folder(), MOCK_CUDA=order, MOCK_CUDA_HOLLOW=None)
                self.assertRegex(run.output, r"\[  PASSED  \] 6 tests")

    def test_shards_cross_beside_the_work_of_the_gpu(self):
        """The token batches alone are copied on the stream that computes."""
        for ledger in self.on_gpu(OFFLOAD, "--training.steps=4", ranks=2).ledgers:
            crossed = {name: count["amount"] for name, count in ledger["copies by stream"].items() if "from pinned" in name}
            self.assertLess(crossed.get("copy from pinned, the default stream", 0), 1e6, crossed)
            self.assertGreater(crossed["copy from pinned, another stream"], 20e6, crossed)

    def dumps(self, order: str, words: list[str]) -> list[dict]:
        """Of three steps: the numbers in the gradient of every weight."""
        words = [OFFLOAD, BF16, *words, "--debug.dump_steps=1,2,3", "--training.steps=3"]
        run = self.on_gpu(*words, MOCK_CUDA_GRADIENTS=1, MOCK_CUDA=order)
        paths = sorted(run.folder.glob("debug/step-*/step.safetensors"))
        steps = [safetensors.torch.load_file(path) for path in paths]
        return [{name: {*tensor.unique().tolist()} for name, tensor in step.items() if name.startswith("grad.")}
                for step in steps]  # fmt: skip


class Copies(MockGpu):
    def test_the_optimizer_writes_the_bf16_weights_that_travel_or_multiply(self):
        copies = ["--parallelism.data_parallel_shard_degree=1", "--parallelism.data_parallel_replicate_degree=2"]
        for words, ranks in (([], 1), ([], 2), (copies, 2), (["--optimizer.state_dtype=bfloat16"], 2)):
            with self.subTest(words=words, ranks=ranks):

                def run(steps, words=words, ranks=ranks):
                    return self.on_gpu(FUSED, BF16, *words, f"--training.steps={steps}", ranks=ranks)

                kernels = self.a_step_more(run, "kernels", 4)  # outside of the graphs
                self.assertGreater(sum(times for name, times in kernels.items() if "adam_kernel" in name), 0)
                self.assertEqual(self.casts(kernels), {})

    def test_another_optimizer_has_them_cast(self):
        def run(steps):
            return self.on_gpu(BF16, "--optimizer.implementation=foreach", f"--training.steps={steps}", ranks=2)

        self.assertNotEqual(self.casts(self.a_step_more(run, "kernels", 4)), {})

    def casts(self, kernels: dict[str, int]) -> dict[str, int]:
        return {name: times for name, times in kernels.items() if "bfloat16_copy" in name}


class SplitProducts(MockGpu):
    def test_partial_sums_in_bf16_are_allowed_and_can_be_forbidden(self):
        option = "--training.allow_bf16_reduced_precision_reduction"
        for words, wanted in (([], "in any type"), ([f"{option}=false"], "in fp32")):
            with self.subTest(words):
                run = self.on_gpu(BF16, *words, "--training.steps=2")
                self.assertEqual(list(run.ledgers[0]["bf16 reductions"]), [wanted])


class Graphs(MockGpu):
    def test_replayed_blocks_hand_on_the_amaxes_that_eager_ones_do(self):
        def looks(*words) -> int:
            ledger = self.on_gpu(FUSED, FLOAT8, *words, "--training.steps=5", ranks=2).ledgers[0]
            self.assertEqual("replayed" in ledger, not words)
            return sum(count["times"] for kind in ("kernels", "replayed") for name, count in ledger.get(kind, {}).items()
                       if "largest_kernel" in name)  # fmt: skip

        eager = looks("--compile.no-cuda_graphs")
        self.assertGreater(eager, 0)
        self.assertEqual(looks(), eager)

    def test_a_replayed_microbatch_launches_what_an_eager_one_does(self):
        eager = self.a_step_more(lambda steps: self.on_gpu(FUSED, f"--training.steps={steps}"), "kernels", 1)
        replayed = self.a_step_more(lambda steps: self.on_gpu(FUSED, f"--training.steps={steps}"), "replayed", 4)
        for name, times in eager.items():
            if "swiglu" in name or "rms_norm" in name or "cross_entropy" in name or "rotate" in name:
                self.assertEqual(replayed[name], times, name)
        graphs = self.a_step_more(lambda steps: self.on_gpu(FUSED, f"--training.steps={steps}"), "graphs", 4)
        self.assertEqual(graphs, {"launched": 1})

    def test_without_memory_for_graphs_steps_run_without_them(self):
        for ranks in (1, 2):  # whole microbatches, and blocks
            with self.subTest(ranks=ranks):
                run = self.on_gpu(FUSED, "--training.steps=5", ranks=ranks, MOCK_CUDA_NO_MEMORY="cudaGraphInstantiate:1")
                self.check_given_up(run, steps=5)

    def test_on_a_card_that_holds_a_step_but_not_its_graphs_the_step_runs(self):
        self.check_given_up(self.llama_8b(FUSED, steps=5, MOCK_CUDA_MIB=112600), steps=5)

    def check_given_up(self, run, steps: int) -> None:
        warned = [line for line in run.output.splitlines() if "but not as CUDA graphs, so it runs without them: " in line]
        self.assertIn(len(warned), range(1, len(run.ledgers) + 1), run.output)
        self.assertNotIn("replayed", run.ledgers[0])
        self.assertEqual(len(run.training("step_seconds")), steps)


class Documents(MockGpu):
    """Attention inside documents: a kernel call for each, of ever other lengths."""

    def test_it_is_the_flash_kernels_and_no_length_gets_a_plan_of_cudnn(self):
        for packing in ("upstream", "document"):
            with self.subTest(packing):
                run = self.on_gpu(DOCUMENTS, BF16, FUSED, f"--data.packing={packing}", "--training.steps=3")
                self.assertIn("Attention by flash: document lengths vary", run.output)
                kernels = run.ledgers[0]["kernels"]
                self.assertFalse([name for name in kernels if "cuDNN" in name or "fmha_cutlass" in name])
                layers, rows = 6, 8
                for kernel in ("flash_fwd_kernel", "flash_bwd_dq_dk_dv_loop"):
                    calls = sum(count["times"] for name, count in kernels.items() if kernel in name)
                    # Rows of one document are one call where all are; here they are not.
                    self.assertGreater(calls, 3 * layers * rows, kernel)
                self.assertNotIn("graphs", run.ledgers[0])

    def test_a_step_waits_for_its_numbers_alone(self):
        for words, ranks in (([], 1), ([BF16], 1), ([BF16, FUSED], 1), ([BF16, FUSED], 2)):
            with self.subTest(words=words, ranks=ranks):
                words = [*words, DOCUMENTS, "--data.packing=document"]
                self.on_gpu(*words, "--debug.sync_check", "--training.steps=4", ranks=ranks)

                def run(steps, words=words, ranks=ranks):
                    return self.on_gpu(*words, f"--training.steps={steps}", ranks=ranks)

                self.assertEqual(self.a_step_more(run, "waits", 6), {"cudaEventSynchronize": ranks})


class Refusals(MockGpu):
    def test_no_gpu(self):
        run = self.on_gpu(code=BAD_CONFIG, MOCK_CUDA_DEVICES=0)
        self.assertIn("sees no CUDA device", run.errors)

    def test_float8_on_a_gpu_that_does_not_multiply_it(self):
        run = self.on_gpu(FLOAT8, code=BAD_CONFIG, MOCK_CUDA_CAPABILITY=80)
        self.assertIn("quantize.linear.float8.emulate = true", run.errors)
        self.on_gpu(FLOAT8, "--quantize.linear.float8.emulate", "--training.steps=2", MOCK_CUDA_CAPABILITY=80)

    def test_a_gpu_that_the_kernels_are_not_built_for(self):
        run = self.on_gpu(code=BAD_CONFIG, MOCK_CUDA_CAPABILITY=75)
        self.assertIn("7.5", run.errors)

    def test_a_check_for_waits_where_the_host_waits_more_than_once_by_design(self):
        gathers = "--quantize.linear.float8.enable_fsdp_float8_all_gather"
        for words in (["--optimizer.early_step_in_backward", "--training.max_norm=0"], [FLOAT8, gathers]):
            run = self.on_gpu("--debug.sync_check", OFFLOAD, *words, code=BAD_CONFIG)
            option = words[0 if FLOAT8 not in words else 1].removeprefix("--")
            self.assertIn(f"training.enable_cpu_offload = true and {option} = true together also wait for", run.errors)

    def test_a_driver_that_is_too_old(self):
        run = self.on_gpu(code=BAD_CONFIG, MOCK_CUDA_DRIVER=12040)
        self.assertIn("it knows CUDA 12.4", run.errors)

    def test_a_library_of_cuda_that_is_missing_or_broken_where_a_driver_is(self):
        shutil.copy(pathlib.Path(self.program).with_name("libtitan.so"), self.folder)
        self.program = shutil.copy(self.program, self.folder)
        library = self.folder / "libtitan_cuda.so"
        self.assertIn(f"there is an NVIDIA driver, and this build's {library} is missing: build it", self.on_gpu(code=BAD_CONFIG).errors)
        library.write_text("no library")
        self.assertIn(f"the GPUs of this machine cannot be used: {library}: ", self.on_gpu(code=BAD_CONFIG).errors)

    def test_cuda_is_loaded_where_a_run_may_use_a_gpu_alone(self):
        for device, loaded in (("cpu", False), ("auto", True)):
            with self.subTest(device):
                words = [self.program, "train", "configs/debug_model.toml", f"--training.device={device}", "--training.steps=1"]
                folder = self.fresh_folder()
                run = self.on_mock([*words, f"--job.dump_folder={folder}"], folder, LD_DEBUG="files")
                self.assertEqual("libtorch_cuda" in run.errors, loaded)


if __name__ == "__main__":
    unittest.main()
