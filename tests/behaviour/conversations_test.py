"""Fine-tuning on conversations as a user meets it: the same run in every layout and after a resume, what bad input says,
and a model that is talked to afterwards. Ids, labels and loss: tests/reference/chat_test.py."""

from __future__ import annotations

import json
import pathlib

from checkpoint_runs import CheckpointTest, parallel
from program import BAD_CONFIG, BAD_DATA, CORPORA, OK

CHAT = ["--training.dataset=chat", f"--training.dataset_path={CORPORA / 'chat.jsonl'}", "--data.chat_template=llama3"]


def conversation(*contents: str) -> str:
    roles = ("user", "assistant")
    return json.dumps({"messages": [{"role": roles[i % 2], "content": text} for i, text in enumerate(contents)]}) + "\n"


class Conversations(CheckpointTest):
    def losses(self, folder: pathlib.Path) -> list[float]:
        lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
        return [line["loss"] for line in lines if "loss" in line]

    def test_every_layout_gives_the_same_losses(self):
        words = [*CHAT, "--training.global_batch_size=4", "--training.seq_len=128", "--data.shuffle"]
        expected = None
        for ranks, layout in ((1, parallel()), (2, parallel(dp_shard=2)), (2, parallel(cp=2)), (2, parallel(tp=2))):
            folder = self.fresh_folder()
            self.complete(ranks, folder, 3, *words, *layout)
            losses = self.losses(folder)
            expected = expected or losses
            self.assertEqual(len(losses), 3)
            for one, other in zip(losses, expected, strict=True):
                self.assertAlmostEqual(one, other, delta=1e-5, msg=str(layout))

    def test_a_resumed_run_reads_the_next_conversation_with_as_many_ranks_as_it_likes(self):
        words = [*CHAT, "--training.global_batch_size=4", "--data.shuffle"]
        whole, resumed = self.fresh_folder(), self.fresh_folder()
        self.complete(1, whole, 6, *words)
        self.complete(1, resumed, 2, *words)
        self.complete(2, resumed, 4, *words, *parallel(dp_shard=2))
        self.complete(1, resumed, 6, *words)
        for one, other in zip(self.losses(resumed)[-2:], self.losses(whole)[-2:], strict=True):
            self.assertAlmostEqual(one, other, delta=1e-5)

    def test_a_mixture_with_text_and_a_validation_on_conversations(self):
        sources = f"""[[data.mixture]]
path = "{CORPORA / 'chat.jsonl'}"
weight = 1
dataset = "chat"
[[data.mixture]]
path = "{CORPORA / 'stories.jsonl'}"
weight = 1
"""
        config = self.config_with(sources)
        mixture = ["--training.dataset=mixture", "--data.chat_template=llama3", "--training.local_batch_size=4"]
        validation = ["--validation.enable", "--validation.dataset=chat", "--validation.freq=2",
                      f"--validation.dataset_path={CORPORA / 'chat_validation.jsonl'}"]  # fmt: skip
        run = self.train(*validation, *mixture, "--debug.dump_steps=1", config=config)
        counted = (run.dump().labels != -100).sum(1).tolist()
        self.assertEqual(sorted(count == 64 for count in counted), [False, False, True, True], counted)
        self.assertTrue(all(count > 0 for count in counted))
        losses = [line["validation_loss"] for line in run.metrics() if "validation_loss" in line]
        self.assertEqual(len(losses), 2)
        text = ["--training.dataset=text", f"--training.dataset_path={CORPORA / 'stories.jsonl'}"]
        self.refused(BAD_CONFIG, ["keeps conversations apart", "train on conversations too"], *validation, *text)

    def test_long_conversations_are_counted_and_bad_ones_are_named(self):
        corpus = self.write("a.jsonl", conversation("hello", "there " * 200) + conversation("a", "b" * 30) * 20)
        words = [*CHAT, f"--training.dataset_path={corpus}", "--training.seq_len=64"]
        for choice, what in (("cut", "cut"), ("drop", "left out")):
            run = self.train(*words, f"--data.long_conversations={choice}")
            said = "\n".join(run.messages("WARNING"))
            self.assertIn("a.jsonl:1: this conversation has", said)
            self.assertIn(f"such conversations are {what} (data.long_conversations) and counted", said)
            self.assertIn("1 conversations did not fit into training.seq_len", said)
            self.assertEqual(run.training("data_long_conversations")[-1], 1)
        corpus.write_text(conversation("hello", "there") + conversation("nobody answers") + conversation("a", "b") * 20)
        self.refused(BAD_DATA, ["a.jsonl:2: this conversation has no turn of the assistant", "data.bad_record"], *words)
        run = self.train(*words, "--data.bad_record=skip", "--training.local_batch_size=1")
        self.assertIn("bad records of the corpus were left out", "\n".join(run.messages("WARNING")))
        corpus.write_text(conversation("a" * 400, "b") * 20 + conversation("a", "b"))
        dropped = ["fill 1 sequences", "; 20 are too long. Give more of them, raise training.seq_len (now "]
        self.refused(BAD_DATA, dropped, *words, "--data.long_conversations=drop")
        corpus.write_text("\n")
        self.refused(BAD_DATA, ["there is no document in"], *words)

    def test_options_that_do_not_fit_are_refused(self):
        for says, *words in (
            (["there is no chat_template", "Set data.chat_template to one of"], "--data.chat_template=auto"),
            (["needs <|im_start|>, <|im_end|> as special tokens", "another data.chat_template"], "--data.chat_template=chatml"),
            (["needs data.chat.assistant_suffix"], "--data.chat_template=custom"),
            (["does not go with data.split"], "--data.split=upstream"),
            (["--data.chat_loss", "allowed: assistant, all"], "--data.chat_loss=user"),
        ):  # fmt: skip
            self.refused(BAD_CONFIG, says, *CHAT, *words)

    def test_a_fine_tuned_model_is_talked_to_in_the_template_of_its_run(self):
        custom = ["--data.chat_template=custom", "--data.chat.user_prefix=Q: ", "--data.chat.user_suffix=\nA:",
                  "--data.chat.assistant_suffix=\n"]  # fmt: skip
        corpus = self.write("a.jsonl", conversation("What is it?", " a red kite") * 40)
        flags = [*CHAT, f"--training.dataset_path={corpus}", *custom, "--checkpoint.enable", "--optimizer.lr=5e-3"]
        run = self.train(*flags, steps=60)
        self.assertLess(run.training("loss")[-1], 0.1)
        said = self.titan("generate", run.folder, "--chat", "--prompt", "What is it?", "--max-new-tokens", 20)
        self.expect(said, OK)
        self.assertEqual(said.output.strip(), "a red kite")
        self.assertEqual(said.errors, "")
