"""titan_train generate against transformers: greedy text, log-probabilities, and the same text in every layout."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

os.environ["HF_HUB_OFFLINE"] = "1"

import tokenizers
import torch
import transformers

from from_hf_test import make
from titan import DEBUG_CONFIG, ROOT, binary

PROMPTS = ["Once upon a time", "2 + 2 =", "Über den Wölken, muß die Freiheit"]
END = "<|end|>"


def byte_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """A token for every byte, and one to end a text."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    model = tokenizers.models.BPE({letter: i for i, letter in enumerate(alphabet)}, [])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    # Without its unk and pad tokens transformers' class of Qwen 2 adds its own, one more than these models have rows for.
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END, unk_token=END)


class ModelTest(unittest.TestCase):
    """A model with a tokenizer in a folder, and commands over it."""

    def setUp(self):
        binary()
        folder = tempfile.TemporaryDirectory(prefix="titan-generate-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def model(self, case: str, name: str = "model"):
        theirs = make(case, vocab_size=257)
        theirs.config.eos_token_id = theirs.generation_config.eos_token_id = 256  # by default Llama's 2, a letter here
        theirs.save_pretrained(self.folder / name)
        byte_tokenizer().save_pretrained(self.folder / name)
        return theirs

    def generate(self, *words: object, model: str = "model", ranks: int = 1, code: int = 0,
                 command: str = "generate") -> list[dict] | str:
        launch = ["launch", "-n", str(ranks)] if ranks > 1 else []
        done = subprocess.run([binary(), *launch, command, str(self.folder / model), *map(str, words)], cwd=self.folder,
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        if code:
            return done.stderr
        lines = done.stdout.rstrip("\n").split("\n")
        return [json.loads(line) for line in lines] if "--json" in words else "\n".join(lines)


class GenerateTest(ModelTest):
    def test_greedy_text_is_theirs(self):
        tokenizer = byte_tokenizer()
        for number, case in enumerate(("llama, tied, odd sizes", "llama3 scaling", "yarn", "mistral", "qwen2", "qwen3")):
            with self.subTest(case):
                name = f"model-{number}"
                theirs = self.model(case, name)
                prompts = [word for text in PROMPTS for word in ("--prompt", text)]
                ours = self.generate(*prompts, "--max-new-tokens", 64, "--json", model=name)
                for prompt, got in zip(PROMPTS, ours, strict=True):
                    ids = tokenizer(prompt, return_tensors="pt").input_ids
                    with torch.no_grad():
                        expected = theirs.generate(ids, max_new_tokens=64, do_sample=False,
                                                   eos_token_id=tokenizer.eos_token_id, pad_token_id=0)[0]
                        logits = theirs(expected[None]).logits[0].log_softmax(-1)
                    new = [token for token in expected[ids.shape[1]:].tolist() if token != tokenizer.eos_token_id]
                    self.assertEqual(got["tokens"], new)
                    self.assertEqual(got["end"], "length" if len(new) == 64 else "stop token")
                    for i, (token, ours_is) in enumerate(zip(new, got["log_probabilities"], strict=True)):
                        self.assertAlmostEqual(ours_is, logits[ids.shape[1] - 1 + i, token].item(), delta=2e-5)

    def test_the_models_own_ids_end_a_text(self):
        theirs = self.model("llama")
        ids = byte_tokenizer()(PROMPTS[0], return_tensors="pt").input_ids
        folder = self.folder / "model"

        def both() -> int:
            (ours,) = self.generate("--prompt", PROMPTS[0], "--max-new-tokens", 20, "--json")
            again = type(theirs).from_pretrained(folder).generate(ids, max_new_tokens=20, do_sample=False, pad_token_id=0)
            new = again[0, ids.shape[1]:].tolist()
            ended = ours["end"] == "stop token"
            self.assertEqual(ours["tokens"], new[:-1] if ended else new)
            return len(new)

        self.assertEqual(both(), 20)
        end = self.generate("--prompt", PROMPTS[0], "--max-new-tokens", 20, "--json")[0]["tokens"][7]

        def end_at(name: str, value: object) -> None:
            path = folder / name
            path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": value}))

        end_at("generation_config.json", [256, end])
        self.assertLess(both(), 9)
        end_at("generation_config.json", 256)
        self.assertEqual(both(), 20)
        (folder / "generation_config.json").unlink()
        end_at("config.json", [256, end])
        self.assertLess(both(), 9)

    def test_imported_weights_know_their_tokenizer(self):
        self.model("llama")
        subprocess.run([binary(), "convert", "from-hf", "model", "ours"], cwd=self.folder, capture_output=True, check=True)
        words = ["--prompt", PROMPTS[0], "--max-new-tokens", 20]
        self.assertEqual(self.generate(*words, model="ours"), self.generate(*words))

    def test_every_layout_gives_the_same_text(self):
        self.model("qwen2")
        words = ["--prompt", PROMPTS[0], "--prompt", PROMPTS[1], "--prompt", PROMPTS[2], "--max-new-tokens", 40,
                 "--temperature", 1.5, "--top-p", 0.9, "--repetition-penalty", 1.2, "--seed", 3, "--json"]
        alone = self.generate(*words)
        for ranks, degrees in (
            (1, ["--no-cache"]),
            (2, ["--parallelism.tensor_parallel_degree=2"]),
            (2, ["--parallelism.data_parallel_shard_degree=2"]),
            (2, ["--parallelism.pipeline_parallel_degree=2"]),
            (4, ["--parallelism.tensor_parallel_degree=2", "--parallelism.pipeline_parallel_degree=2"]),
        ):
            with self.subTest(degrees):
                for got, expected in zip(self.generate(*words, *degrees, ranks=ranks), alone, strict=True):
                    self.assertEqual(got["text"], expected["text"])
                    self.assertEqual(got["tokens"], expected["tokens"])
                    for a, b in zip(got["log_probabilities"], expected["log_probabilities"], strict=True):
                        self.assertAlmostEqual(a, b, delta=1e-5)

    def test_degrees_that_training_lengths_do_not_divide_by(self):
        # 9 heads, 3 of keys
        make("llama, tied, odd sizes", vocab_size=258, intermediate_size=78).save_pretrained(self.folder / "model")
        byte_tokenizer().save_pretrained(self.folder / "model")
        words = ["--prompt", "Once", "--max-new-tokens", 5]
        alone = self.generate(*words)
        self.assertEqual(self.generate(*words, "--parallelism.tensor_parallel_degree=3", ranks=3), alone)
        self.assertIn("the degrees need 3 ranks", self.generate(*words, "--parallelism.tensor_parallel_degree=3", code=64))
        said = self.generate(*words, "--parallelism.context_parallel_degree=2", ranks=2, code=64)
        self.assertIn("ranks that see whole", said)

    def test_standard_output_has_the_result_alone(self):
        self.model("llama")
        words = ["--prompt", "Once", "--max-new-tokens", 3, "--model.override.norm_eps=1e-3"]  # a warning of the weights
        for ranks in (1, 2):
            (said,) = self.generate(*words, "--json", ranks=ranks)
            self.assertEqual(self.generate(*words, ranks=ranks), "Once" + said["text"])

    def test_bfloat16_is_near(self):
        self.model("llama")
        words = ["--prompt", PROMPTS[0], "--max-new-tokens", 1, "--json"]
        (wide,), (narrow,) = self.generate(*words), self.generate(*words, "--dtype", "bfloat16")
        self.assertEqual(wide["tokens"], narrow["tokens"])
        self.assertAlmostEqual(wide["log_probabilities"][0], narrow["log_probabilities"][0], delta=0.1)
        self.assertNotEqual(wide["log_probabilities"], narrow["log_probabilities"])

    def test_what_is_shown_is_whole_characters_and_stays(self):
        """With bytes as tokens, text at the end may become another one with the next byte."""
        theirs = make("llama", vocab_size=300)
        theirs.config.eos_token_id = theirs.generation_config.eos_token_id = None
        theirs.save_pretrained(self.folder / "model")
        letters = "".join(map(chr, range(ord("a"), ord("z") + 1))) + " äöüß€"
        words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(
            {word: i for i, word in enumerate(words)}, [], byte_fallback=True, unk_token="<unk>"))
        tokenizer.decoder = tokenizers.decoders.Sequence([tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()])
        tokenizer.save(str(self.folder / "model" / "tokenizer.json"))
        for seed in range(6):
            words = ["--prompt", "once", "--max-new-tokens", "60", "--temperature", "3", "--seed", str(seed)]
            done = subprocess.run([binary(), "generate", "model", *words], cwd=self.folder, capture_output=True, check=True)
            (said,) = self.generate(*words, "--json")
            self.assertEqual(done.stdout.decode(), "once" + said["text"] + "\n")  # valid UTF-8
            self.assertEqual(said["text"], tokenizer.decode(said["tokens"]))

    def test_a_short_prompt_has_its_tokens_whatever_is_beside_it(self):
        self.model("llama")
        words = ["--max-new-tokens", 30, "--context", 60, "--json"]
        (alone,) = self.generate("--prompt", "Once", *words)
        beside, long = self.generate("--prompt", "Once", "--prompt", "x" * 50, *words)
        self.assertEqual(beside["tokens"], alone["tokens"])
        self.assertEqual((len(alone["tokens"]), len(long["tokens"])), (30, 10))

    def test_a_run_finds_its_tokenizer_from_everywhere(self):
        self.model("llama")
        self.train("--model.from_hf=model", "--job.dump_folder=run")
        words = ["--prompt", "Once", "--max-new-tokens", "3"]
        said = subprocess.run([binary(), "generate", str(self.folder / "run"), *words], cwd="/", capture_output=True,
                              text=True, check=True)
        self.assertTrue(said.stdout.startswith("Once"), said.stdout)

    def train(self, *words: object) -> None:
        subprocess.run([binary(), str(DEBUG_CONFIG), *map(str, words), "--training.steps=1", "--training.seq_len=64",
                        "--checkpoint.enable"], cwd=self.folder, capture_output=True, check=True)

    def test_a_prompt_begins_as_the_tokenizer_or_the_training_begins_it(self):
        theirs = self.model("llama")
        tokenizer = byte_tokenizer()
        tokenizer.bos_token = END

        def expected(ids: list[int], model=theirs) -> list[int]:
            made = model.generate(torch.tensor([ids]), max_new_tokens=8, do_sample=False, pad_token_id=0, eos_token_id=-1)
            return made[0, len(ids):].tolist()

        words = ["--prompt", "Once", "--max-new-tokens", 8, "--json"]
        alone = tokenizer("Once").input_ids
        tokenizer.save_pretrained(self.folder / "model")
        self.assertNotEqual(expected(alone), expected([256, *alone]))
        self.assertEqual(self.generate(*words)[0]["tokens"], expected(alone))
        self.train("--model.from_hf=model", "--job.dump_folder=run")
        subprocess.run([binary(), "convert", "to-hf", "run", "back"], cwd=self.folder, capture_output=True, check=True)
        trained = type(theirs).from_pretrained(self.folder / "back")
        made = expected([256, *alone], trained)
        (self.folder / "config.json").write_text(json.dumps({"eos_token_id": made[0]}))  # not the model's, but where it runs
        self.assertEqual(self.generate(*words, model="run")[0]["tokens"], made)
        tokenizer.backend_tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"{END} $A", special_tokens=[(END, 256)])
        tokenizer.save_pretrained(self.folder / "model")
        self.assertEqual(self.generate(*words)[0]["tokens"], expected([256, *alone]))

    def test_the_context_is_the_models_or_ends_where_dynamic_scaling_begins(self):
        words = ["--max-new-tokens", 1]
        tokenizer = f"--model.tokenizer_path={self.folder / 'bytes'}"
        byte_tokenizer().save_pretrained(self.folder / "bytes")
        self.train("--model.name=llama2", "--model.flavor=debugmodel", "--job.dump_folder=run", tokenizer)
        said = self.generate("--prompt", "x" * 5000, *words, model="run", code=65)
        self.assertIn("the prompt makes 5000 tokens, and the context holds 4096; shorten the prompt\n", said)
        said = self.generate("--prompt", "x" * 50, "--max-new-tokens", 4090, model="run", code=65)
        self.assertIn("the model's context is 4096 tokens, and 4140 are asked for; lower --max-new-tokens\n", said)
        self.train("--model.name=llama3", "--model.flavor=debugmodel", "--model.rope_scaling=dynamic",
                   "--model.override.rope_factor=2", "--job.dump_folder=dynamic", tokenizer)
        self.assertIn("Once", self.generate("--prompt", "Once", *words, model="dynamic"))
        said = self.generate("--prompt", "x" * 9000, *words, model="dynamic", code=65)
        self.assertIn("the prompt makes 9000 tokens, and the context holds 8192", said)

    def test_the_models_own_ids_end_a_text_with_another_tokenizers_file(self):
        self.model("llama")
        byte_tokenizer().save_pretrained(self.folder / "bytes")
        words = ["--prompt", PROMPTS[0], "--max-new-tokens", 20, "--json", f"--model.tokenizer_path={self.folder / 'bytes'}"]
        end = self.generate(*words)[0]["tokens"][7]
        path = self.folder / "model" / "generation_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": [end]}))
        self.assertEqual(self.generate(*words)[0]["end"], "stop token")

    def test_prompts_from_files(self):
        self.model("llama")
        (self.folder / "prompt.txt").write_text(PROMPTS[2])
        by_option = self.generate("--prompt", PROMPTS[2], "--max-new-tokens", 9)
        self.assertTrue(by_option.startswith(PROMPTS[2]))
        self.assertEqual(self.generate("--file", "prompt.txt", "--max-new-tokens", 9), by_option)
        done = subprocess.run([binary(), "generate", "model", "--file", "-", "--max-new-tokens", "9"], cwd=self.folder,
                              input=PROMPTS[2], capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout.rstrip("\n"), by_option)

    def test_chat_is_the_conversation_of_their_template(self):
        theirs = self.model("qwen2")
        tokenizer = byte_tokenizer()
        tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
        tokenizer.chat_template = (
            "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}"
            "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
        tokenizer.save_pretrained(self.folder / "model")
        with torch.no_grad():  # rows for the new tokens
            theirs.resize_token_embeddings(259, mean_resizing=False)
        theirs.save_pretrained(self.folder / "model")
        words = ["--chat", "--system", "Be brief.", "--max-new-tokens", 20]
        turns = ["Hello there", "And then?"]
        answers = self.generate(*words, "--prompt", turns[0], "--prompt", turns[1], "--json")
        messages = [{"role": "system", "content": "Be brief."}]
        end = tokenizer.convert_tokens_to_ids("<|im_end|>")
        for turn, answer in zip(turns, answers, strict=True):
            messages.append({"role": "user", "content": turn})
            ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt",
                                                return_dict=True).input_ids
            with torch.no_grad():
                made = theirs.generate(ids, max_new_tokens=20, do_sample=False, pad_token_id=0,
                                       eos_token_id=[tokenizer.eos_token_id, end])[0, ids.shape[1]:].tolist()
            self.assertEqual(answer["tokens"], [token for token in made if token not in (tokenizer.eos_token_id, end)])
            self.assertEqual(answer["prompt"], turn)
            messages.append({"role": "assistant", "content": answer["text"]})
        done = subprocess.run([binary(), "generate", "model", *map(str, words)], cwd=self.folder, check=True,
                              input=("\n".join(turns) + "\n").encode(), capture_output=True)
        self.assertEqual(done.stdout, "".join(answer["text"] + "\n" for answer in answers).encode())
        self.assertIn("--file", self.generate(*words, "--file", "x", code=64))
        self.assertIn("standard input in common", self.generate(*words, ranks=2, code=64))
        (self.folder / "model" / "chat_template.jinja").unlink()
        self.assertIn("chat_template", self.generate(*words, "--prompt", "x", code=64))

    def test_bad_input_is_one_sentence(self):
        self.model("llama")
        hello = ["--prompt", "hello"]
        (self.folder / "utf16.txt").write_text("Once", encoding="utf-16")
        (self.folder / "model" / "chat_template.jinja").write_text(
            "{% if messages[0]['role'] == 'system' %}{{ raise_exception('there is no system role') }}{% endif %}"
            "{% for turn in messages %}<{{ turn['role'] }}>{{ turn['content'] }}</>{% endfor %}"
            "{% if add_generation_prompt %}<assistant>{% endif %}"
        )
        for words, code, said in (
            ([], 64, "--prompt"),
            (["--prompt", " "], 65, "a prompt is empty"),
            ([*hello, "--top-k", 3], 64, "--temperature"),
            ([*hello, "--seed", 3], 64, "--temperature"),
            ([*hello, "--temperature", -1], 64, "--temperature"),
            ([*hello, "--stop-id", 257], 64, "--stop-id 257 is not a token"),
            ([*hello, "--stop", ""], 64, "--stop is empty"),
            ([*hello, "--context", 4], 65, "the prompt makes 5 tokens"),
            ([*hello, "--max-new-tokens", 5000], 65, "context is 4096 tokens"),
            (["--prompt", "x" * 5000], 65, "the prompt makes 5000 tokens, and the context holds 4096"),
            ([*hello, "--temperature", "nan"], 64, "nan is not a number"),
            ([*hello, "--temperature", 1, "--seed", -1], 64, "--seed"),
            (["--chat", "--prompt", " ", "--data.chat_template=custom", "--data.chat.assistant_suffix=!"], 65, "a turn is empty"),
            (["--file", "nowhere.txt"], 65, "nowhere.txt"),
            (["--file", "model"], 64, "--file model is a folder; name a file"),
            (["--file", "utf16.txt"], 65, "the prompt is in UTF-16; convert it to UTF-8"),
            (["--chat", *hello, "--system", "Be brief."], 65, "there is no system role; try it without --system"),
        ):
            with self.subTest(words):
                self.assertIn(said, self.generate(*words, code=code))
        (self.folder / "model" / "tokenizer.json").unlink()
        self.assertIn("--model.tokenizer_path", self.generate(*hello, code=65))
        (self.folder / "model" / "model.safetensors").unlink()
        self.assertIn("holds no weights", self.generate(*hello, code=73))
        self.assertIn("there is no folder", self.generate(*hello, model="elsewhere", code=73))
        (self.folder / "empty").mkdir()
        self.assertIn("holds no model", self.generate(*hello, model="empty", code=73))


if __name__ == "__main__":
    unittest.main()
