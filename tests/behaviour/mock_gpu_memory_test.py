"""The memory of a GPU on the mock GPU (tests/mock_cuda): what a run plans and takes, what it says when memory runs out,
and snapshots of the allocator."""

from __future__ import annotations

import pickle
import re
import unittest

from mock_gpu import BF16, FUSED, MockGpu
from program import CORPORA, OUT_OF_MEMORY, SMALL, VALIDATION

OFFLOAD = "--training.enable_cpu_offload"


class Memory(MockGpu):
    def test_tensor_parallel_memory_does_not_grow(self):
        run = self.on_gpu("--parallelism.tensor_parallel_degree=2", "--training.steps=12", ranks=2)
        peaks = run.training("memory_peak_bytes")
        self.assertEqual(len(peaks), 12)
        self.assertLess(max(peaks), 1.25 * peaks[1], peaks)

    def test_llama_8b_fits_one_gpu_without_recomputing_a_product_and_takes_what_is_planned(self):
        run = self.llama_8b(FUSED, steps=4)
        planned, actual = re.findall(r"together +([\d.]+) GiB +([\d.]+) GiB", run.output)[0]
        self.assertAlmostEqual(float(actual) / float(planned), 1, delta=0.03)
        self.assertLess(run.ledgers[0]["peaks"]["device bytes"], 0.9 * (143166 << 20))

    def test_gradients_of_blocks_in_bf16_take_half_the_bytes(self):
        held = {}
        for dtype in ("float32", "bfloat16"):
            run = self.llama_8b(FUSED, f"--training.gradient_dtype={dtype}", steps=4)
            planned, actual = re.findall(r"together +([\d.]+) GiB +([\d.]+) GiB", run.output)[0]
            self.assertAlmostEqual(float(actual) / float(planned), 1, delta=0.03)
            held[dtype] = float(re.search(r"  gradients +([\d.]+) GiB +\1 GiB", run.output)[1])
        self.assertAlmostEqual(held["float32"] - held["bfloat16"], 2 * 32 * 218_112_000 / 2**30, delta=0.02)

    def test_logits_are_computed_in_as_few_parts_as_fit(self):
        def parts(run):
            return re.findall(r"training.loss_chunks = 0: logits are computed in (.+)", run.output)

        for mib, wanted in ((143166, "1 part"), (125000, "8 parts")):
            run = self.llama_8b(FUSED, "--training.loss_chunks=0", steps=2, MOCK_CUDA_MIB=mib)
            self.assertEqual(parts(run), [wanted])
            planned, actual = re.findall(r"together +([\d.]+) GiB +([\d.]+) GiB", run.output)[0]
            self.assertAlmostEqual(float(actual) / float(planned), 1, delta=0.03)
        # The rank with the least memory chooses for all, whose collectives must match.
        tensor = [FUSED, "--training.loss_chunks=0", "--parallelism.tensor_parallel_degree=2", "--training.steps=2"]
        for sizes, wanted in (("143166,2100", "8 parts"), ("2100,143166", "8 parts"), ("143166", "1 part")):
            run = self.on_gpu(*tensor, ranks=2, MOCK_CUDA_MIB=sizes)
            self.assertEqual(parts(run), [wanted])

    def test_logits_in_one_part_leave_room_for_a_second_block(self):
        """What is allocated between two steps cuts up the block that held them."""
        job = ["--model.name=qwen3", "--model.flavor=0.6B", "--model.override.vocab_size=151936", "--training.seq_len=2048",
               "--training.local_batch_size=6", "--activation_checkpoint.mode=full", BF16, FUSED, "--training.steps=4"]  # fmt: skip
        for mib in (18054, 24000):
            with self.subTest(mib):
                run = self.on_gpu(*job, "--training.loss_chunks=0", MOCK_CUDA_MIB=mib)
                planned, actual = re.findall(r"together +([\d.]+) GiB +([\d.]+) GiB", run.output)[0]
                self.assertLess(float(actual), mib / 1024)

    def test_a_report_on_each_rank_plans_with_the_parts_of_the_run(self):
        job = ["--training.loss_chunks=0", "--training.steps=3", "--model.override.vocab_size=65536", BF16,
               "--training.local_batch_size=32", "--parallelism.data_parallel_replicate_degree=2",
               "--parallelism.data_parallel_shard_degree=1"]  # fmt: skip
        self.on_gpu(*job, ranks=2, MOCK_CUDA_MIB="143166,3300")

    def test_llama_8b_with_all_recomputed_clipping_and_graphs_fits_80_gb(self):
        words = [FUSED, "--training.gradient_dtype=bfloat16", "--activation_checkpoint.mode=full", "--training.max_norm=1"]
        run = self.llama_8b(*words, steps=5, MOCK_CUDA_MIB=81040)
        self.assertGreater(run.ledgers[0]["graphs"]["launched"]["times"], 0)
        self.assertLess(run.ledgers[0]["peaks"]["device bytes"], 0.9 * (81040 << 20))

    def test_gradients_in_bf16_are_among_the_settings_that_fit(self):
        words = [FUSED, "--activation_checkpoint.mode=full"]
        run = self.llama_8b(*words, steps=5, code=OUT_OF_MEMORY, MOCK_CUDA_MIB=77000)
        self.assertRegex(run.errors, r'it would fit with: .*training\.gradient_dtype = "bfloat16"')

    def test_memory_that_runs_out_ends_with_a_report(self):
        run = self.llama_8b(FUSED, steps=2, code=OUT_OF_MEMORY, MOCK_CUDA_MIB=90000)
        self.assertRegex(run.errors, r"out of memory .* it would fit with: ")
        self.assertRegex(run.output, r"memory by purpose, when it ran out in ")

    def test_a_validation_that_runs_out_is_named_and_its_settings_fit(self):
        words = [*VALIDATION, f"--validation.dataset_path={CORPORA / 'stories.jsonl'}", "--validation.local_batch_size=32",
                 FUSED, "--validation.seq_len=8192", "--validation.steps=1", "--validation.freq=4"]  # fmt: skip
        run = self.llama_8b(*words, steps=4, code=OUT_OF_MEMORY, MOCK_CUDA_MIB=124928)
        planned = 1024 * float(re.search(r"together in validation +([\d.]+) GiB", run.output)[1])
        steps = 1024 * float(re.search(r"together +([\d.]+) GiB", run.output)[1])
        self.assertLess(1.05 * steps, 124928)
        self.assertRegex(run.errors, r"out of memory .* in validation, forward of layers\.0, after step 4; the plan takes ")
        self.assertRegex(run.output, r"memory by purpose, when it ran out in validation, forward of layers\.0, after step 4:")
        warned = [line for line in run.messages("WARNING") if "the plan takes" in line]
        self.assertRegex(warned[0], r"GiB on this rank in validation, and this machine's ")
        said = re.search(r"it would fit with: (validation\.local_batch_size = \d+) \([\d.]+ GiB\)", run.errors)[1]
        self.llama_8b(*words, f"--{said.replace(' = ', '=')}", steps=4, MOCK_CUDA_MIB=124928)
        self.llama_8b(*words, steps=4, MOCK_CUDA_MIB=round(1.05 * planned))
        self.llama_8b(*words, steps=4, code=OUT_OF_MEMORY, MOCK_CUDA_MIB=round(0.95 * planned))

    def test_a_card_that_libraries_alone_may_fill_is_told_what_it_has(self):
        room = r"this machine's \S.* has 1\.00 GiB, 2\.00 GiB reserved for libraries: nothing left for this rank"
        fits = self.on_gpu(*SMALL, "--training.steps=2", MOCK_CUDA_MIB=1024)
        warned = [line for line in fits.messages("WARNING") if "the plan takes" in line]
        self.assertEqual(len(warned), 1, fits.output)
        self.assertRegex(warned[0], rf"on this rank, and {room}; it would fit with no setting known here$")
        run = self.llama_8b(FUSED, steps=1, code=OUT_OF_MEMORY, MOCK_CUDA_MIB=1024)
        self.assertRegex(run.errors, rf"out of memory .*; no setting known here would fit: {room}; a larger one would do")
        estimate = self.on_gpu("--memory_estimation.enable", MOCK_CUDA_MIB=1024)
        self.assertRegex(estimate.output, rf"Peak of tensors: \S+ \S+; {room}")
        for said in (fits.output, run.output, run.errors, estimate.output):
            self.assertNotRegex(said, r"\b1 B\b")

    def test_memory_that_libraries_lack_is_told_as_such(self):
        shards = ["--parallelism.data_parallel_shard_degree=2"]
        rows = (("ncclReduceScatter:5", shards, 2, r"\(while ranks communicated\) .* it would fit with: "),
                ("cudaHostAlloc:3", [OFFLOAD], 1, r"the host has no .* more .*; keep less there: leave out "))  # fmt: skip
        for call, words, ranks, remedy in rows:
            with self.subTest(call):
                run = self.on_gpu(*words, "--training.steps=4", ranks=ranks, code=OUT_OF_MEMORY, MOCK_CUDA_NO_MEMORY=call)
                self.assertRegex(run.errors, remedy)
                self.assertNotIn("frame #", run.errors)
                if "it would fit" in remedy:
                    self.assertIn("memory by purpose, when it ran out in ", run.output)

    def test_settings_that_are_said_to_fit_do(self):
        # More processes are another job; what is on the host would be memory of this machine.
        for room, given in ((95000, []), (143166, ["--training.local_batch_size=2"])):
            run = self.llama_8b(FUSED, *given, steps=1, code=OUT_OF_MEMORY, MOCK_CUDA_MIB=room)
            said = re.search(r"it would fit with: (.*)", run.errors)[1]
            settings = [re.sub(r" \([\d.]+ GiB\)$", "", setting) for setting in said.split(" | ")]
            tried = [setting for setting in settings if "processes" not in setting and "offload" not in setting]
            self.assertTrue(tried, said)
            for setting in tried:
                with self.subTest(room=room, setting=setting):
                    words = [f"--{pair.replace(' = ', '=')}".replace('"', "") for pair in setting.split(" with ")]
                    self.llama_8b(FUSED, *given, *words, steps=4, MOCK_CUDA_MIB=room)


class Snapshots(MockGpu):
    """What the caching allocator holds and did, for PyTorch's viewer."""

    def train_with_snapshots(self, *words, **options) -> dict[str, dict]:
        """By the name of their folder; every second step of four."""
        words = ("--profiling.enable_memory_snapshot", "--profiling.profile_freq=2", *words)
        small = ("--training.local_batch_size=2", "--training.seq_len=64", "--training.steps=4")
        run = self.on_gpu(*small, *words, **options)
        files = (run.folder / "memory_snapshot").glob("*/rank0_memory_snapshot.pickle")
        return {path.parent.name: pickle.loads(path.read_bytes()) for path in files}

    def expect_history(self, snapshot: dict) -> None:
        self.assertTrue(all(segment["total_size"] >= segment["allocated_size"] for segment in snapshot["segments"]))
        self.assertGreater(sum(segment["allocated_size"] for segment in snapshot["segments"]), 0)
        actions = [entry["action"] for trace in snapshot["device_traces"] for entry in trace]
        self.assertIn("alloc", actions)
        self.assertIn("free_completed", actions)

    def test_are_written_after_the_last_step_of_each_period(self):
        snapshots = self.train_with_snapshots()
        self.assertEqual(sorted(snapshots), ["iteration_2", "iteration_4"])
        for snapshot in snapshots.values():
            self.expect_history(snapshot)

    def test_when_memory_runs_out_there_is_one_more(self):
        # A dump needs more memory than a step.
        snapshots = self.train_with_snapshots("--debug.dump_steps=2", code=OUT_OF_MEMORY, MOCK_CUDA_MIB=215)
        self.assertEqual(sorted(snapshots), ["iteration_1_exit"])
        self.expect_history(snapshots["iteration_1_exit"])


if __name__ == "__main__":
    unittest.main()
