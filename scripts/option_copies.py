"""Counts fields that hold an option of a job a second time, outside include/titan/config/job_config.h.

    option_copies.py [CHECKOUT] [--most N]    prints them by struct; with --most, fails if there are more than N
    option_copies.py [CHECKOUT] --others      prints what the same names find in all other structs and classes

A part takes a section of JobConfig where it needs most of it, and an operation takes the value. What is counted here is
the third way: a struct that describes a job again, field by field. Its name ends in Options, Request, Strategies,
Schedule, Selection or Retention, or is TraceShape or ValidationShape. A field counts if its name is an option's
(`loss_chunks`), if all its words are words of one option (`cpu_offload` of training.enable_cpu_offload), or if
OTHER_NAMES says which option it holds. Flags of subcommands (src/app, src/cli, include/titan/cli) are not options of a
job.

All other types are left out, since a name says too little there: about 230 of their fields, in 180 types, have the
name of an option (--others). Most hold something else: the size of a tensor, a dtype, the state of an object. Those that
restate an option hold it as it was decided: RotaryScaling (7 fields), LlamaArguments (6), ModelDescription (5) and
LlamaFlavor (5) what a model is after flavor, config.json and overrides are weighed; WeightGroupPlan (4) and BatchPlan (3)
what the plan decided for one group or batch; AdamOptimizer (3) the settings of its groups. Such a description is no copy:
its readers must not decide again, which they would do with the section.
"""

import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
DESCRIBES = re.compile(r"(Options|Request|Strategies|TraceShape|ValidationShape|Schedule|Selection|Retention)$")

# Fields whose names do not show the option that they hold.
OTHER_NAMES = {
    "samples": "training.local_batch_size",
    "sequence_length": "training.seq_len",
    "max_sequence": "model.max_seq_len",
    "accumulation": "training.global_batch_size",
    "master": "training.dtype",
    "compute": "training.mixed_precision_param",
    "reduce": "training.mixed_precision_reduce",
    "round_weight_gradient": "training.weight_gradient_dtype",
    "chunks": "training.loss_chunks",
    "parallel": "parallelism.disable_loss_parallel",
    "in_place": "compile.components",
    "rotation": "parallelism.context_parallel_rotate_method",
    "rotates_by_all_gather": "parallelism.context_parallel_rotate_method",
    "load_balance": "parallelism.context_parallel_load_balancer",
    "reshard": "parallelism.fsdp_reshard_after_forward",
    "modules": "parallelism.module_fqns_per_model_part",
    "offload_activations": "activation_checkpoint.offload",
    "validation": "validation.enable",
    "recompute": "activation_checkpoint.mode",
    "every": "activation_checkpoint.selective_ac_option",
    "parts": "activation_checkpoint.selective_ac_option",
    "fused_kernels": "compile.components",
    "fused_loss": "compile.components",
    "float8": "model.converters",
    "recipe": "quantize.linear.float8.recipe_name",
    "gathers": "quantize.linear.float8.enable_fsdp_float8_all_gather",
    "gathers_float8": "quantize.linear.float8.enable_fsdp_float8_all_gather",
    "casts_again": "quantize.linear.float8.force_recompute_fp8_weight_in_bwd",
    "precomputes": "quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp",
    "filters": "quantize.linear.float8.filter_fqns",
    "leaves_small": "quantize.linear.float8.filter_fqns",
    "decoupled_decay": "optimizer.name",
    "epsilon": "optimizer.eps",
    "state_type": "optimizer.state_dtype",
    "peak": "optimizer.lr",
    "minimum_factor": "lr_scheduler.min_lr_factor",
    "rule": "job.generation",
    "begin": "data.chat.begin",
    "prefix": "data.chat.system_prefix",
    "suffix": "data.chat.system_suffix",
    "system": "data.chat.system_prefix",
    "user": "data.chat.user_prefix",
    "assistant": "data.chat.assistant_prefix",
    "factor": "model.override.rope_factor",
    "drops_long": "data.long_conversations",
    "restart_positions": "model.flavor",
    "labels_end_with_document": "data.packing",
    "queue_depth": "data.prefetch",
    "all_count": "data.chat_loss",
    "window": "training.spike_window",
    "threshold": "training.spike_threshold",
    "skips": "training.spike_guard",
    "root": "checkpoint.folder",
    "keep_latest": "checkpoint.keep_latest_k",
    "only_loads": "checkpoint.load_only",
}
# Fields that share their name with an option and hold something else.
OTHER_MEANING = {"name", "rank", "size", "split", "report", "seed", "section", "times", "rest", "mode", "steps"}
OTHER_MEANING |= {"tensor_parallel", "context_parallel", "activation_offload", "device"}  # objects
# The same of single fields.
OTHER_MEANING_IN = {"MegatronOrderRequest.samples"}  # how many a run reads
# ... except in these structs.
HOLDS_AFTER_ALL = {
    "ModelRequest.name",
    "ChatTemplateOptions.name",
    "CheckpointerOptions.mode",
    "RecomputeSelection.mode",
}


def option_names(checkout):
    """(words of each option's key, all names of options and of their members)."""
    words, names = [], set()
    for path in sorted((checkout / "src/config").glob("schema_*.cpp")):
        text, section = path.read_text(), ""
        for match in re.finditer(r'Section \w+\(\s*schema,\s*"([\w.]+)"|\.add(?:_records)?\("(\w+)"(?:,\s*&\w+::(\w+))?', text):
            if match[1]:
                section = match[1]
                continue
            names |= {match[2], match[3] or match[2]}
            words.append(set(re.split(r"[._]", f"{section}.{match[2]}")))
    return words, names


def without_comments(text):
    text = re.sub(r'"(?:\\.|[^"\\\n])*"', '""', text)
    return re.sub(r"//[^\n]*", "", text)


def structs(text):
    """(name, body) of every struct with its nested ones, which also come by themselves."""
    for match in re.finditer(r"\bstruct (\w+)(?: final)?(?:\s*:[^;{()]*)?\s*\{", text):
        depth, end = 1, match.end()
        while depth and end < len(text):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        yield match[1], text[match.end() : end - 1]


def fields(body):
    """Names of the data members of a struct's body."""
    body = re.sub(r"\b(struct|enum class|enum) \w+[^;{]*\{(?:[^{}]|\{[^{}]*\})*\}", "", body)  # nested types
    body = re.sub(r"\)\s*(const)?\s*\{(?:[^{}]|\{[^{}]*\})*\}", ");", body)  # bodies of functions
    names = []
    for original in body.split(";"):
        statement = re.sub(r"=[^,]*|\{[^{}]*\}", "", original)
        while re.search(r"<[^<>]*>", statement):
            statement = re.sub(r"<[^<>]*>", " ", statement)
        if re.match(r"\s*(using|friend|static|template|explicit|virtual)\b", statement) or "(" in statement:
            continue
        if "Section" in original or DESCRIBES.search(re.split(r"\s", statement.strip())[0]):
            continue  # holds the section itself, or a struct whose fields are counted
        declared = re.match(r"\s*[\w:&*]+(?:\s+const)?[\s&*]+(\w+(?:\s*,\s*\w+)*)\s*$", statement.replace("const ", ""))
        if declared:
            names += re.split(r"\s*,\s*", declared[1])
    return names


def is_copy(struct, field, words, names):
    if f"{struct}.{field}" in HOLDS_AFTER_ALL:
        return True
    if field in OTHER_MEANING or f"{struct}.{field}" in OTHER_MEANING_IN:
        return False
    own = set(field.split("_"))
    return field in names or field in OTHER_NAMES or (len(own) > 1 and any(own <= option for option in words))


def copies(checkout, others=False):
    words, names = option_names(checkout)
    found = {}
    for folder in ("include", "src"):
        for path in sorted((checkout / folder).rglob("*.h")) + sorted((checkout / folder).rglob("*.cpp")):
            relative = path.relative_to(checkout).as_posix()
            if path.name == "job_config.h" or relative.startswith(("src/app/", "src/cli/", "include/titan/cli/")):
                continue
            text = without_comments(path.read_text())
            if others:
                for name, body in structs(re.sub(r"(?<!enum )\bclass (?=\w+[\s{])", "struct ", text)):
                    held = [field for field in fields(body) if is_copy(name, field.rstrip("_"), words, names)]
                    if held and not DESCRIBES.search(name):
                        found[f"{relative}: {name}"] = held
                continue
            for name, body in structs(text):
                if not DESCRIBES.search(name):
                    continue
                held = [field for field in fields(body) if is_copy(name, field, words, names)]
                for inner, inner_body in structs(body):
                    held += [f"{inner}.{field}" for field in fields(inner_body) if is_copy(inner, field, words, names)]
                if held:
                    found[f"{relative}: {name}"] = held
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", nargs="?", type=pathlib.Path, default=ROOT)
    parser.add_argument("--most", type=int)
    parser.add_argument("--others", action="store_true")
    arguments = parser.parse_args()
    found = copies(arguments.checkout, arguments.others)
    for place, held in sorted(found.items(), key=lambda entry: -len(entry[1])):
        print(f"{len(held):4}  {place}  {', '.join(held)}")
    total = sum(len(held) for held in found.values())
    print(f"{total:4}  fields in {len(found)} {'types' if arguments.others else 'structs'}")
    if arguments.most is not None and total > arguments.most:
        sys.exit(f"more than {arguments.most}: take the section of the config, or pass the value")


if __name__ == "__main__":
    main()
