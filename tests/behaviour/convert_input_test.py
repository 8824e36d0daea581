"""titan_train convert where another thing is named than it reads or writes: one sentence with what to do, and nothing on
disk has changed."""

from __future__ import annotations

import unittest

import torch
from convert_test import CONFIG, SIZES, Conversions, flags, their_tensors
from program import BAD_CONFIG, STORAGE


class OtherThings(Conversions):
    def test_a_size_of_files_that_is_none_is_refused(self):
        for size in ("nan", "-nan", "inf", "-inf", "-1", "0", "1e7", "1e-9", "five"):
            self.refused(BAD_CONFIG, ["--shard-gigabytes", "1000000"], "to-hf", "a", "b", f"--shard-gigabytes={size}")

    def test_a_number_of_ranks_that_is_none_is_refused(self):
        for number in ("0", "1.5", "many"):
            says = [f"--data-ranks: Value {number} not in range 1 to 1000000"]
            self.refused(BAD_CONFIG, says, "to-2026", "a", "b", f"--data-ranks={number}")

    def test_weights_of_other_programs_where_a_checkpoint_is_asked_for_are_answered_with_the_way_to_one(self):
        self.make_source()
        says = ["theirs holds a model in Hugging Face's form", "convert from-hf"]
        self.refused(STORAGE, says, "to-torch", self.source, self.target)
        self.refused(STORAGE, says, "to-hf", self.source, self.target, *flags())
        self.refused(STORAGE, says, "to-2024", self.source, self.target, *flags())
        meta = self.folder / "meta"
        meta.mkdir()
        (meta / "params.json").write_text("{}")
        self.refused(STORAGE, ["meta holds a model in Meta's form", "convert from-meta"], "to-torch", meta, self.target)

    def test_a_file_where_a_folder_is_asked_for_is_called_one(self):
        self.make_source()
        file = self.source / "model.safetensors"
        says = ["model.safetensors is a file; name the folder that it lies in"]
        for direction in ("to-torch", "to-hf", "to-2024", "to-2026", "from-hf", "from-meta"):
            self.refused(STORAGE, says, direction, file, self.target, *flags())
        self.refused(STORAGE, says, "verify", file)

    def test_settings_that_no_model_here_can_have_are_refused(self):
        for more, says in (({"rope_scaling": "yes"}, 'rope_scaling is "yes", which is no JSON object'),
                           ({"rope_scaling": [8.0]}, "rope_scaling is [8.0], which is no JSON object"),
                           ({"rope_parameters": 3}, "rope_parameters is 3, which is no JSON object"),
                           ({"rope_theta": "large"}, 'rope_theta is "large", here 500000.0'),
                           ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
                           ({"rope_parameters": {"rope_theta": 500000.0, "partial_rotary_factor": 0.25}},
                            "partial_rotary_factor is 0.25")):
            self.make_source(config={**CONFIG, **more})
            self.refused(BAD_CONFIG, ["config.json", says], *self.from_hf())
            words = (*flags(), "--training.steps=1", "--checkpoint.enable", "--checkpoint.initial_load_in_hf",
                     f"--checkpoint.initial_load_path={self.source}")
            run = self.titan(*self.command(*words, folder=self.fresh_folder())[1:])
            self.expect(run, BAD_CONFIG)
            self.assertIn(says, run.errors)
        self.make_source(config={**CONFIG, "partial_rotary_factor": 1.0, "rope_scaling": None})
        self.convert(*self.from_hf())

    def test_nothing_is_written_into_a_checkpoint(self):
        self.make_source()
        self.convert(*self.from_hf())
        says = [f"would lie inside {self.target}, a checkpoint, and be deleted with it", "outside of it"]
        for name in ("more", "a/b/c"):
            self.refused(STORAGE, says, "to-hf", self.target, self.target / name, *flags())
            self.refused(STORAGE, says, "to-torch", self.target, self.target / name)
            self.refused(STORAGE, says, "from-hf", self.source, self.target / name, *flags())
        link = self.folder / "link"
        link.symlink_to(self.target)
        self.refused(STORAGE, ["would lie inside", str(self.target)], "to-torch", self.target, link / "more")

    def test_an_import_counts_the_tensors_of_a_model_of_32_layers(self):
        layers = 32
        self.make_source(their_tensors(layers=layers), {**CONFIG, "num_hidden_layers": layers})
        sizes = {**SIZES, "n_layers": layers}
        run = self.convert("from-hf", self.source, self.target, *flags(sizes))
        self.assertRegex(run.output, r"theirs holds llama3 debugmodel: 291/291 tensors, 0 missing, 0 unexpected; \S+ \S+ parameters")
        state = self.folder / "state.pt"
        self.convert("to-torch", self.target, state)
        self.assertEqual(len(torch.load(state, weights_only=True)), 291)


if __name__ == "__main__":
    unittest.main()
