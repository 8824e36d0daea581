"""titan_train launch --restarts, and titan_train restart for job scripts: a run that fails is started again, until a
restart cannot mend it."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import time
import unittest

from checkpoint_runs import KILLED, REQUEUE, SAVING, CheckpointTest, parallel
from program import BAD_CONFIG, BAD_DATA, INTERRUPTED, NON_FINITE, OK, STORAGE
from rank_processes import HANG, LAUNCHER, Process

SAVES_ON_REQUEST = "--checkpoint.interval=1000000"
RESTART = "titan_train launch: restart "


class Supervised(CheckpointTest):
    def supervise(self, ranks: int, folder: pathlib.Path, *words, restarts: object = 10, **more) -> Process:
        words = self.training(*SAVING, *words, f"--job.dump_folder={folder}")
        return self.start("launch", "-n", ranks, "--restarts", restarts, *words, **more)

    def kill(self, run: Process, rank: int, number: int = signal.SIGKILL) -> None:
        self.wait_until(lambda: rank in self.rank_processes(run.popen.pid), f"rank {rank}")
        os.kill(self.rank_processes(run.popen.pid)[rank], number)

    def restarts(self, run: Process) -> list[str]:
        return [line for line in run.text().splitlines() if line.startswith(RESTART)]

    def wait_for_restarts(self, run: Process, count: int) -> None:
        self.wait_until(lambda: len(self.restarts(run)) >= count or run.popen.poll() is not None, f"restart {count}")
        self.assertEqual(len(self.restarts(run)), count, run.text())

    def expect_stop(self, run: Process, code: int, says: str, restarts: int) -> None:
        self.assertEqual(run.end(), code, run.text())
        self.assertRegex(run.text().splitlines()[-1], says)
        self.assertEqual(len(self.restarts(run)), restarts, run.text())
        self.expect_friendly(run.text())
        self.expect_nothing_left()

    @staticmethod
    def events(folder: pathlib.Path) -> list[dict]:
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        return [line for line in lines if line.get("event") == "restart"]


class Restarts(Supervised):
    RANKS, STEPS = 4, 150

    def test_ranks_that_are_killed_leave_the_weights_of_the_undisturbed_run(self):
        folder, layout = self.folder / "run", parallel(dp_shard=self.RANKS)
        run = self.supervise(self.RANKS, folder, *layout, f"--training.steps={self.STEPS}")
        run.wait_for("checkpoint 4 committed: ")
        self.kill(run, 2)
        self.wait_for_restarts(run, 1)
        after = run.text().index(RESTART)
        self.wait_until(lambda: self.committed(run.text()[after:]) or run.popen.poll() is not None, "another checkpoint")
        self.kill(run, 0)
        self.assertEqual(run.end(), OK, run.text())
        lines = self.restarts(run)
        self.assertEqual(len(lines), 2, run.text())
        for number, (line, rank) in enumerate(zip(lines, (2, 0), strict=True), 1):
            self.assertRegex(line, rf"restart {number} of 10 from step \d+: rank {rank} was killed by signal 9 \(Killed\); "
                                   r".*; lost \d+ steps and \d+\.\d s of training")
        self.assertRegex(lines[1], r"; host \S+ failed 2 times in this run \(ranks 2, 0\): suspect$")
        self.expect_shown(folder, run)
        whole = self.folder / "whole"
        self.complete(self.RANKS, whole, self.STEPS, *layout, f"--checkpoint.interval={self.STEPS}")
        self.expect_same_checkpoint(folder, whole, self.STEPS)
        self.expect_nothing_left()

    def expect_shown(self, folder: pathlib.Path, run: Process) -> None:
        """Metrics, log and page have both restarts, with their parts."""
        events = self.events(folder)
        self.assertEqual([event["restarts"] for event in events], [1, 2])
        for event in events:
            self.assertEqual((event["exit_code"], event["step"]), (KILLED, event["from_step"] + 1))
            self.assertEqual(list(event["parts"]), ["ending", "start", "rendezvous", "build", "load", "first_step"])
            self.assertAlmostEqual(sum(event["parts"].values()), event["down_seconds"], places=6)
            self.assertGreater(event["lost_seconds"], 0)
            self.assertGreaterEqual(event["lost_steps"], 0)
        self.assertEqual(len(self.restart_lines(run)), 2, run.text())
        page = (folder / "report.html").read_text()
        self.assertEqual(page.count("rank 2 was killed by signal 9"), 1)
        self.assertIn('"restarts":2', page)

    @staticmethod
    def restart_lines(run: Process) -> list[str]:
        return [line for line in run.text().splitlines() if " s after the failure: ending " in line]

    def test_a_rank_that_hangs_is_named_and_the_run_started_again(self):
        folder = self.folder / "run"
        run = self.supervise(2, folder, *parallel(dp_shard=2), "--comm.train_timeout_seconds=5")
        run.wait_for("checkpoint 2 committed: ")
        self.kill(run, 1, signal.SIGSTOP)
        self.wait_for_restarts(run, 1)
        self.assertRegex(self.restarts(run)[0], r"from step \d+: .*rank 1 \(\S+, process \d+\) hangs: it does not respond")
        self.assertEqual(json.loads((folder / "attempts.jsonl").read_text())["rank"], 1)
        self.assertEqual(json.loads((folder / "attempts.jsonl").read_text())["exit_code"], HANG)
        run.popen.send_signal(signal.SIGTERM)
        self.assertIn(run.end(), (REQUEUE, INTERRUPTED, 128 + signal.SIGTERM), run.text())
        self.expect_nothing_left()


class Stops(Supervised):
    def test_three_restarts_without_a_step_end_it_with_the_ranks_code(self):
        run = self.supervise(2, self.folder / "run", *parallel(dp_shard=2), SAVES_ON_REQUEST)
        for restarts in range(4):
            self.wait_until(lambda done=restarts: run.text().count(" step:  1 ") > done, "the first step")
            self.kill(run, 1)
            if restarts < 3:
                self.wait_for_restarts(run, restarts + 1)
        self.expect_stop(run, KILLED, "not started again, since 3 restarts in a row committed no step after step 0; rank 1 "
                                      r"was killed by signal 9.*; host \S+ failed 4 times", 3)

    def test_numbers_that_are_not_finite_come_again(self):
        run = self.supervise(2, self.folder / "run", *parallel(dp_shard=2), "--optimizer.lr=1e30", "--optimizer.weight_decay=0")
        says = r"since the same steps usually give the same numbers again; rank \d ended with exit code 72 \(its message is above\)$"
        self.expect_stop(run, NON_FINITE, says, 0)
        self.assertEqual(run.text().count("are not finite; "), 1, run.text())

    def test_data_that_are_refused_come_again(self):
        corpus = self.write("corpus.jsonl", '{"text": "a few words"}\n{"text": 7}\n')
        words = ("--training.dataset=text", f"--training.dataset_path={corpus}")
        run = self.supervise(2, self.folder / "run", *parallel(dp_shard=2), *words)
        self.expect_stop(run, BAD_DATA, "since the same data would be refused again", 0)

    def test_a_signal_to_the_supervisor_ends_all(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            folder = self.folder / f"run-{number}"
            run = self.supervise(2, folder, *parallel(dp_shard=2))
            run.wait_for("checkpoint 2 committed: ")
            run.popen.send_signal(number)
            self.expect_stop(run, REQUEUE, "^titan_train launch: saved; run the same command to resume$", 0)
            self.assertFalse((folder / "attempts.jsonl").exists())

    def test_a_signal_while_the_ranks_start_again_ends_all(self):
        run = self.supervise(2, self.folder / "run", *parallel(dp_shard=2))
        run.wait_for("checkpoint 2 committed: ")
        self.kill(run, 0)
        self.wait_for_restarts(run, 1)
        run.popen.send_signal(signal.SIGTERM)
        self.assertIn(run.end(), (REQUEUE, INTERRUPTED, 128 + signal.SIGTERM, -signal.SIGTERM), run.text())
        self.assertEqual(len(self.restarts(run)), 1, run.text())
        self.expect_nothing_left()

    def test_ranks_do_not_outlive_a_supervisor_that_is_killed_and_the_same_command_resumes(self):
        folder = self.folder / "run"
        run = self.supervise(2, folder, *parallel(dp_shard=2))
        run.wait_for("checkpoint 4 committed: ")
        run.popen.kill()
        run.end()
        self.expect_nothing_left()
        newest = self.checkpoints(folder)[-1]
        again = self.supervise(2, folder, *parallel(dp_shard=2), f"--training.steps={newest + 2}")
        self.assertEqual(again.end(), OK, again.text())
        self.assertEqual(self.loaded(again.text()), newest)
        self.assertEqual(self.events(folder), [])

    def test_checkpoints_that_vanish_are_not_begun_anew(self):
        folder = self.folder / "run"
        run = self.supervise(2, folder, *parallel(dp_shard=2), SAVES_ON_REQUEST)
        run.wait_for(" step:  2 ")
        run.popen.send_signal(signal.SIGUSR2)
        run.wait_for(" committed: ")
        (folder / "checkpoint").rename(self.folder / "elsewhere")
        self.kill(run, 1)
        self.expect_stop(run, STORAGE, r"not started again: the folder of its checkpoints, which held step \d+, has none now; see "
                                       "whether its disk is mounted; rank 1 was killed", 0)


    def test_a_folder_that_vanishes_is_not_begun_anew(self):
        for began in (0, 2):  # also in the first attempt of a supervisor, which knows what was there before
            with self.subTest(began=began):
                folder = self.folder / f"run-{began}"
                if began:
                    self.complete(2, folder, began, *parallel(dp_shard=2))
                run = self.supervise(2, folder, *parallel(dp_shard=2))
                run.wait_for(" committed: ")
                folder.rename(self.folder / f"elsewhere-{began}")
                self.kill(run, 1)
                self.expect_stop(run, STORAGE, r"not started again: the (run's folder \S+ is not there any more|folder of its "
                                               r"checkpoints, which held step \d+, has none now); see whether its disk is mounted; ", 0)

    def test_a_request_to_save_while_ranks_start_kills_none(self):
        run = self.supervise(2, self.folder / "run", *parallel(dp_shard=2), "--training.steps=6")
        self.wait_until(lambda: 1 in self.rank_processes(run.popen.pid), "rank 1")
        for _ in range(20):
            run.popen.send_signal(signal.SIGUSR2)
            time.sleep(0.05)
        self.assertEqual(run.end(), OK, run.text())
        self.assertEqual(self.restarts(run), [])


class Refused(Supervised):
    def refuse(self, code: int, says: str, *words, restarts: object = 3) -> None:
        run = self.start("launch", "-n", 2, "--restarts", restarts, *words)
        self.assertEqual(run.end(), code, run.text())
        self.assertRegex(run.text(), says)
        self.assertLessEqual(len(run.text().splitlines()), 2, run.text())
        self.expect_friendly(run.text())

    def test_counts_that_are_none(self):
        for count in ("-1", "many", "1.5", "", "1e3", "99999999999999999999"):
            with self.subTest(count=count):
                self.refuse(BAD_CONFIG, r"^titan_train: launch: .*--restarts.* \(titan_train launch --help\)$",
                            *self.training(*SAVING), restarts=count)

    def test_runs_that_could_not_resume(self):
        self.refuse(BAD_CONFIG, "a run without checkpoints loses all its steps when it is started again; set checkpoint.enable",
                    *self.training())
        self.refuse(BAD_CONFIG, "every restart would go back to that step", *self.training(*SAVING, "--checkpoint.load_step=2"))
        self.refuse(BAD_CONFIG, "launch: --restarts is for training; leave it out for ranks", "ranks", *self.options())
        self.assertFalse((self.folder / "run").exists())

    def test_a_second_supervisor_of_one_folder(self):
        folder = self.folder / "run"
        first = self.supervise(2, folder, *parallel(dp_shard=2))
        first.wait_for("checkpoint 2 committed: ")
        second = self.supervise(2, folder, *parallel(dp_shard=2))
        says = (rf"^titan_train: {folder} is supervised already, by titan_train launch on \S+, process {first.popen.pid}, since "
                r".*; end that one, or name another folder in job\.dump_folder$")
        self.assertEqual(second.end(), LAUNCHER, second.text())
        self.assertRegex(second.text(), says)
        # A job that was refused by the folder's lock does not remove what the run has left there.
        words = self.training(*SAVING, *parallel(dp_shard=2), f"--job.dump_folder={folder}")
        job = self.start("restart", "--exit-code", LAUNCHER, "--supervisor", "job 8", *words)
        self.assertEqual(job.end(), LAUNCHER, job.text())
        self.assertTrue((folder / "progress.json").exists())
        self.assertIsNone(first.popen.poll())
        first.popen.send_signal(signal.SIGTERM)
        self.assertEqual(first.end(), REQUEUE, first.text())


class JobScript(Supervised):
    """titan_train restart, as scripts/titan.sbatch calls it."""

    def decide(
        self, code: int, folder: pathlib.Path, *words, supervisor: str = "job 7", began: tuple = (), **variables
    ) -> tuple[int, str]:
        words = self.training(*SAVING, *words, f"--job.dump_folder={folder}")
        run = self.start("restart", "--exit-code", code, "--supervisor", supervisor, *began, *words, **variables)
        return run.end(), run.text()

    def test_decides_as_the_launcher_does_and_the_next_start_reports_the_cost(self):
        folder, layout = self.folder / "run", parallel(dp_shard=2)
        _, newest = self.kill_after(2, folder, 4, *layout)
        begin = time.time()
        code, said = self.decide(74, folder, *layout)  # as srun ends: ranks that lost the killed one are more
        self.assertEqual(code, REQUEUE, said)
        self.assertRegex(said, rf"^titan_train restart: restart 1 of 100 from step {newest}: rank 1 \(\S+, process \d+\) ended "
                               r"without a message: .*; lost \d+ steps? and \d+\.\d s of training\n$")
        text = self.complete(1, folder, newest + 2, TITAN_RESTARTED="1")  # any layout resumes
        self.assertEqual(self.loaded(text), newest)
        (event,) = self.events(folder)
        self.assertEqual((event["from_step"], event["rank"], event["restarts"]), (newest, 1, 1))
        self.assertLess(event["down_seconds"], time.time() - begin + 1)

    def test_stops_after_three_without_a_step_and_says_what_another_job_said(self):
        folder = self.folder / "run"
        self.complete(1, folder, 2)
        for _ in range(3):
            self.assertEqual(self.decide(137, folder)[0], REQUEUE)
        code, said = self.decide(137, folder, supervisor="job 8")
        self.assertEqual(code, REQUEUE, said)
        self.assertIn("restart 1 of 100 from step 2: the ranks ended with exit code 137", said)
        code, said = self.decide(137, folder)
        self.assertEqual(code, 137)
        self.assertIn("not started again, since 3 restarts in a row committed no step after step 2", said)

    def test_checkpoints_that_vanish_end_the_job(self):
        folder = self.folder / "run"
        self.complete(1, folder, 2)
        self.assertEqual(self.decide(137, folder)[0], REQUEUE)
        (folder / "checkpoint").rename(self.folder / "elsewhere")
        code, said = self.decide(137, folder)
        self.assertEqual(code, STORAGE, said)
        self.assertRegex(said, "^titan_train restart: not started again: the folder of its checkpoints, which held step 2, has "
                               "none now; see whether its disk is mounted; .*\n$")

    def test_a_restart_that_cannot_be_recorded_is_not_granted(self):
        folder = self.folder / "run"
        (folder / "attempts.jsonl").mkdir(parents=True)
        code, said = self.decide(137, folder)
        self.assertEqual(code, 137, said)
        self.assertRegex(said, r"^titan_train restart: not started again, since this restart cannot be recorded in \S+/attempts\.jsonl, "
                               r"and so not be counted: .*; the ranks ended with exit code 137\n$")

    def test_a_folder_that_the_run_never_made_is_made_for_the_record_and_missed_when_it_is_gone(self):
        folder = self.folder / "run"
        self.assertEqual(self.decide(137, folder)[0], REQUEUE)
        self.assertEqual(self.decide(137, folder, TITAN_RESTARTED="1")[0], REQUEUE)
        folder.rename(self.folder / "elsewhere")
        code, said = self.decide(137, folder, TITAN_RESTARTED="1")
        self.assertEqual(code, STORAGE, said)
        self.assertRegex(said, "^titan_train restart: not started again: .* does not hold the attempts before this one; .*\n$")
        self.assertFalse(folder.exists())

    def test_a_folder_that_is_gone_after_a_long_attempt_is_missed(self):
        folder = self.folder / "run"
        long_ago = ("--began", int(time.time()) - 3600)
        code, said = self.decide(137, folder, began=long_ago)
        self.assertEqual(code, STORAGE, said)
        self.assertIn("is not there any more; see whether its disk is mounted", said)
        self.assertFalse(folder.exists())

    def test_what_an_older_run_left_is_not_this_attempts(self):
        folder = self.folder / "run"
        folder.mkdir()
        old = {"rank": 3, "host": "node9", "exit_code": 72, "text": "step 812: loss nan", "time": time.time() - 86400}
        (folder / "failure.json").write_text(json.dumps(old))
        code, said = self.decide(74, folder, began=("--began", int(time.time()) - 100))
        self.assertEqual(code, REQUEUE, said)
        self.assertNotIn("812", said)

    def test_codes_that_a_restart_cannot_mend_come_back(self):
        folder = self.folder / "run"
        for code in (64, 65, 72, 0):
            found, said = self.decide(code, folder)
            self.assertEqual(found, code, said)
        code, said = self.decide(70, folder, "--checkpoint.enable=false")
        self.assertEqual(code, 70, "the config is as the user wants it")
        self.assertRegex(said, "^titan_train restart: not started again: .*checkpoint.enable.*loses all its steps.*\n$")

    def test_refuses_words_that_are_none(self):
        for words in (("--exit-code", "many"), ("--exit-code", "-1"), ("--exit-code", "70", "--restarts", "-1"),
                      ("--exit-code", "70", "--restarts", "many"), ("--exit-code", "70", "--restarts", "99999999999999999999"), ()):
            run = self.start("restart", *words, *self.training(*SAVING))
            self.assertEqual(run.end(), BAD_CONFIG, run.text())
            self.assertRegex(run.text(), r"^titan_train: restart: .*\n$")


if __name__ == "__main__":
    unittest.main()
