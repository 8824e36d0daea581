"""titan_train selftest and netcheck: one process, ranks under launchers, faults that they must find."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import unittest
from unittest import mock

from program import BAD_CONFIG, INTERRUPTED, TIME_LIMIT_SECONDS, Run
from rank_processes import RanksTest, free_port

WRONG_NUMBERS = 77
SLOW_NETWORK = 69


class Cluster(RanksTest):
    def launched(self, ranks: int, *words) -> Run:
        return self.titan("launch", "-n", ranks, *words)

    def refuses(self, run: Run, part: str):
        self.expect(run, BAD_CONFIG)
        self.assertIn(part, run.errors)


class Selftest(Cluster):
    def test_one_process_and_ranks_pass_every_layout(self):
        expected = {1: ["one rank"], 2: ["FSDP over 2", "tensor parallel 2"], 4: ["HSDP", "context parallel 2"]}
        for ranks, layouts in expected.items():
            with self.subTest(ranks=ranks):
                run = self.titan("selftest") if ranks == 1 else self.launched(ranks, "selftest")
                self.expect(run, 0)
                lines = run.output.splitlines()
                self.assertTrue(lines[-1].startswith("selftest passed: "), run.output)
                self.assertTrue(all(line.startswith("ok") for line in lines[:-1]), run.output)
                for layout in layouts:
                    self.assertIn(layout, run.output)

    def test_json_has_every_row_with_its_limits(self):
        run = self.titan("selftest", "--json")
        self.expect(run, 0)
        result = json.loads(run.output)
        self.assertTrue(result["passed"])
        for row in result["rows"]:
            self.assertLessEqual(row["gradients"], row["gradients_limit"])
        exact = [row for row in result["rows"] if row["gradients_limit"] <= 1e-5]
        self.assertGreaterEqual(len(exact), 2)

    def test_a_product_that_is_off_by_a_thousandth_fails_and_all_ranks_end_with_the_same_code(self):
        self.use_dying_program()
        with mock.patch.dict(os.environ, {"PERTURB": "1 1e-3"}):  # the reference is computed by rank 0
            run = self.launched(2, "selftest", "--training.device=cpu")
        self.expect(run, WRONG_NUMBERS)
        failed = sum(line.startswith("FAIL ") for line in run.output.splitlines())
        self.assertRegex(run.output, rf"selftest failed: {failed} of \d+ rows failed on 2 ranks ")
        self.assertIn("the worst gradient is that of ", run.output)

    def test_nothing_is_left_behind(self):
        folder = self.folder / "temporary"
        folder.mkdir()
        with mock.patch.dict(os.environ, {"TMPDIR": str(folder)}):
            self.expect(self.titan("selftest"), 0)
        self.assertEqual(list(folder.iterdir()), [])

    def test_a_signal_ends_it_without_a_verdict_and_leaves_nothing_behind(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                folder = self.folder / f"temporary-{ranks}"
                folder.mkdir()
                words = ["selftest"] if ranks == 1 else ["launch", "-n", str(ranks), "selftest"]
                pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
                process = self.open_program([self.program, *words], env=os.environ | {"TMPDIR": str(folder)}, **pipes)
                self.wait_until(lambda: len(list(folder.iterdir())) == ranks, "the folders of all ranks")
                process.send_signal(signal.SIGTERM)
                output, errors = process.communicate(timeout=TIME_LIMIT_SECONDS)
                self.assertEqual(process.returncode, INTERRUPTED, output + errors)
                self.assertNotRegex(output + errors, "FAIL|ERROR|selftest (passed|failed)|stopped by a signal")
                self.assertEqual(list(folder.iterdir()), [])

    def test_options_that_are_wrong_are_refused(self):
        self.refuses(self.titan("selftest", "--jsn"), "--json")
        self.refuses(self.titan("selftest", "--training.devise=cpu"), "training.device")


class Netcheck(Cluster):
    # On a machine that other programs use, any pair may be slow once.
    EASY = "--slow=1000"

    def test_every_axis_and_every_pair_is_measured(self):
        words = ("--json", "--largest-mib=1", self.EASY, "--parallelism.tensor_parallel_degree=2")
        run = self.launched(4, "netcheck", *words)
        self.expect(run, 0)
        result = json.loads(run.output)
        pairs = sorted(tuple(pair["ranks"]) for pair in result["pairs"])
        self.assertEqual(pairs, [(a, b) for a in range(4) for b in range(a + 1, 4)])
        seen = {(one["communicator"], one["collective"]) for one in result["collectives"]}
        for axis in ("fsdp_gather", "tp"):
            for collective in ("all-gather", "reduce-scatter", "all-reduce", "send to the next"):
                self.assertIn((axis, collective), seen)
        tensor = {tuple(one["ranks"]) for one in result["collectives"] if one["communicator"] == "tp"}
        self.assertEqual(tensor, {(0, 1), (2, 3)})
        self.assertTrue(all(one["gb_per_second"] > 0 for one in result["collectives"]))

    def test_a_table_and_a_verdict_are_printed(self):
        run = self.launched(2, "netcheck", "--largest-mib=1", self.EASY)
        self.expect(run, 0)
        lines = run.output.splitlines()
        self.assertIn("fsdp_gather", run.output)
        self.assertIn("nothing was compared", lines[-1])
        self.assertTrue(lines[-1].startswith("netcheck passed: 2 ranks, 1 pair, 0 slow"), run.output)

    def test_a_slow_pair_is_named_and_no_other(self):
        self.use_dying_program()
        with mock.patch.dict(os.environ, {"SLOW_PAIR": "1 3 0.5"}):
            run = self.launched(4, "netcheck", "--json", "--largest-mib=1", "--slow=20")
        self.expect(run, SLOW_NETWORK)
        problems = json.loads(run.output)["problems"]
        self.assertEqual(len(problems), 1, problems)
        self.assertIn("ranks 1 and 3 on ", problems[0])

    def hardware(self, links_gb_s: float) -> str:
        rates = {"memory_gib": 80, "product_tflops": 1, "float8_tflops": 1, "attention_tflops": 1, "memory_gb_s": 1,
                 "nvlink_gb_s": links_gb_s, "network_gb_s": links_gb_s, "host_link_gb_s": 1, "host_memory_gb_s": 1, "gpus_per_host": 8}
        text = "[mine]\n" + "".join(f"{key} = {value}\n" for key, value in rates.items())
        return f"--hardware={self.write('links.toml', text)}"

    def test_collectives_are_compared_with_what_the_hardware_promises(self):
        run = self.launched(2, "netcheck", "--largest-mib=1", self.EASY, self.hardware(1e-6))
        self.expect(run, 0)
        self.assertRegex(run.output.splitlines()[-1], r"; the slowest of 4 collectives has \d+ % of what the hardware promises$")
        run = self.launched(2, "netcheck", "--json", "--largest-mib=1", self.EASY, self.hardware(1e6))
        self.expect(run, SLOW_NETWORK)
        problems = json.loads(run.output)["problems"]
        for what in ("all-gather of fsdp_gather", "reduce-scatter of fsdp_gather", "all-reduce of fsdp_gather", "ranks 0 and 1 on "):
            self.assertEqual(sum(problem.startswith(what) for problem in problems), 1, problems)

    def test_what_cannot_be_measured_is_said(self):
        self.refuses(self.titan("netcheck"), "this is a single process")
        self.refuses(self.launched(2, "netcheck", "--hardware=h101"), "h100-sxm")
        missing = self.write("gpu.toml", "[mine]\nmemory_gib = 80\n")
        self.refuses(self.launched(2, "netcheck", f"--hardware={missing}"), "product_tflops")
        self.refuses(self.launched(2, "netcheck", "--largest-mib=0"), "--largest-mib")
        self.refuses(self.launched(3, "netcheck", "--parallelism.tensor_parallel_degree=2"), "Invalid parallel dims")


class Launchers(Cluster):
    """Both commands with the variables that each launcher gives its ranks; no launcher itself is there to be tried."""

    @staticmethod
    def variables(launcher: str, rank: int, job: int) -> dict[str, object]:
        return {
            "torchrun": {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1",
                         "MASTER_PORT": job, "TORCHELASTIC_RUN_ID": f"run-{job}", "TORCHELASTIC_RESTART_COUNT": 0,
                         "TORCHELASTIC_USE_AGENT_STORE": "True"},
            "mpirun": {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": 2, "OMPI_COMM_WORLD_LOCAL_RANK": rank,
                       "OMPI_COMM_WORLD_LOCAL_SIZE": 2, "OMPI_MCA_ess_base_jobid": job},
            "mpiexec": {"PMI_RANK": rank, "PMI_SIZE": 2, "MPI_LOCALRANKID": rank, "MPI_LOCALNRANKS": 2,
                        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": job},
            "srun": {"SLURM_JOB_ID": job, "SLURM_STEP_ID": 4, "SLURM_PROCID": rank, "SLURM_NTASKS": 2, "SLURM_STEP_NUM_TASKS": 2,
                     "SLURM_LOCALID": rank, "SLURM_NODEID": 0, "SLURM_STEP_NUM_NODES": 1, "SLURM_STEP_TASKS_PER_NODE": 2,
                     "SLURM_STEP_NODELIST": "n007"},
        }[launcher]

    def test_ranks_find_each_other_and_rank_0_alone_reports(self):
        commands = {"selftest": ["selftest", "--training.device=cpu"],
                    "netcheck": ["netcheck", "--training.device=cpu", "--largest-mib=1", Netcheck.EASY]}
        for launcher in ("torchrun", "mpirun", "mpiexec", "srun"):
            for command, words in commands.items():
                with self.subTest(launcher=launcher, command=command):
                    port = free_port()
                    ranks = [self.start(*words, **self.variables(launcher, rank, port)) for rank in range(2)]
                    self.assertEqual([rank.end() for rank in ranks], [0, 0], ranks[0].text() + ranks[1].text())
                    self.assertRegex(ranks[0].text().splitlines()[-1], rf"^{command} passed: .*\b2 ranks\b")
                    self.assertNotIn(f"{command} passed", ranks[1].text())


if __name__ == "__main__":
    unittest.main()
