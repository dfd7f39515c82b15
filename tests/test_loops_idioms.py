"""The idioms in which public training scripts are written, and the loop or test that shows each."""

from __future__ import annotations

import re

import pytest

from tests.framework_loops import FRAMEWORKS
from tests.link_tree import ROOT
from tests.test_loops import THEMES

# Loops of ``loop_shapes_*``, frameworks of ``framework_loops``, and other tests as file::test.
IDIOMS = {
    "next(iter) begun again on StopIteration": ("iter_next", "iter_next_with_workers"),
    "an endless generator around the loader": ("endless_generator",),
    "itertools.cycle": ("cycle",),
    "zip of loaders": ("zip_of_two", "second_loader_begins_anew"),
    "a new loader for each call": ("loader_made_anew",),
    "a generator that times or logs": ("own_meter_around_the_loader",),
    "prefetch in a thread": (
        "background_thread",
        "test_real_shapes::test_batches_that_another_thread_fetches_are_not_taken_over",
    ),
    "prefetch one ahead": ("prefetcher_one_ahead",),
    "the next batch fetched before this backward": (
        "fetched_before_backward",
        "made_between_forward_and_backward",
        "made_between_forward_and_backward_accumulating",
    ),
    "no loader": ("no_loader", "rollouts", "replay_buffer", "whole_graph"),
    "a loader class of its own": (
        "one_iterator_for_all_epochs",
        "its_own_get_iterator",
        "one_iterator_and_an_evaluation",
    ),
    "a loader that is not torch's": (
        "loader_of_another_make",
        "buffer_in_a_thread",
        "fastai",
        "webdataset",
        "monai_thread",
        "test_loops_declined::test_where_batches_come_from_without_a_loader_is_told_by_the_loop",
    ),
    "a framework makes the loader again": ("made_again_from_its_signature", "accelerate", "lightning"),
    "many loaders, models, optimizers": ("folds", "skorch"),
    "batches of every kind": ("batches_of_every_kind", "dict_batches", "torch_geometric"),
    "batch samplers, none at all": ("batch_sampler", "batches_made_by_the_dataset"),
    "iterable data sets, shards": ("iterable_dataset", "shards"),
    "what cannot be sent to workers": ("what_no_worker_could_be_sent",),
    "more workers than cores": ("more_workers_than_cores",),
    "the environment changed in the script": ("settings_by_exec",),
    "several forwards a step": ("siamese", "average_of_weights"),
    "the loss inside the forward": ("loss_inside_forward",),
    "forward called past __call__": ("forward_called_directly", "rollouts"),
    "forwards without gradients": ("evaluation_first", "sampling_between", "teacher_beside_two_loaders"),
    "backward by a library": ("loss_scaled", "lightning_gan", "accelerate", "transformers"),
    "double backward": ("double_backward",),
    "remote calls": ("test_loops_declined::test_training_by_remote_calls_is_declined_by_name",),
    "functional training": ("functional",),
    "closures": ("lbfgs_closure", "closure_without_loader", "closure_of_a_framework", "lightning"),
    "no optimizer": ("no_optimizer", "neither_loader_nor_optimizer", "update_by_hand", "autograd_grad"),
    "gradients clipped before the update": ("clipped",),
    "an optimizer that is not torch's": ("optimizer_of_another_make", "scheduled_optimizer", "fastai"),
    "several optimizers": ("gan", "gan_critic_three_times", "gan_without_loader"),
    "accumulation": ("accumulation", "last_group_is_short", "ends_in_stop_iteration"),
    "steps that are skipped": ("loss_scaled", "only_finite_losses"),
    "optimizers in hooks of the backward": (
        "optimizer_in_backward",
        "optimizer_in_backward_without_loader",
        "backward_in_another_thread",
    ),
    "compiled models": ("test_loops_processes::test_compiled_code_is_compiled_as_it_would_be",),
    "spawned and forked trainers": (
        "test_loops_processes::test_ranks_that_the_script_spawns_are_recorded_and_the_late_one_is_summarised",
        "test_loops_processes::test_trainers_that_the_script_forks_are_followed",
    ),
    "torchrun, python -m": (
        "test_loops_processes::test_ranks_of_torchrun_are_recorded_and_the_others_wait_is_a_collectives",
        "test_launch_target::test_a_module_is_started_by_name",
    ),
    "no guard of __main__": ("plain", "two_workers"),
    "settings by exec": ("settings_by_exec",),
    "arguments of its own": ("test_launch_target::test_a_script_gets_every_word_after_it",),
    "folders, names and siblings of its own": (
        "test_probe::test_path_arguments_and_main_are_as_they_would_be",
        "test_probe::test_the_users_modules_come_first_whatever_their_names",
    ),
    "a terminal": ("test_launch::test_where_we_have_a_terminal_the_script_has_one",),
    "endless training": ("test_real_shapes::test_batches_that_another_thread_fetches_are_not_taken_over",),
    "exceptions and signals swallowed": ("bare_except", "test_launch::test_stopping_ends_the_whole_family"),
    "ends that are no end": ("os_exit", "fails_in_the_end"),
    "its own profiler": ("own_profiler",),
    "runs too short to judge": (
        "test_cli::test_what_kept_a_script_from_being_measured_is_said_and_decides_the_exit_code",
    ),
    "tensor subclasses": ("tensor_subclass", "monai"),
    "side effects": (
        "test_guard::test_trial_after_trial_starts_equal",
        "test_guard_offline::test_pushes_do_nothing_and_look_done",
    ),
    "randomness": ("test_real_shapes::test_an_exact_plan_leaves_every_epoch_as_it_was",),
    "evaluation within an epoch": (
        "evaluation_inside",
        "evaluation_inside_without_loader",
        "one_batch_of_validation_a_step",
    ),
    "evaluation between epochs": (
        "validation_between_epochs",
        "evaluation_on_the_training_loader",
        "epochs_of_counted_batches",
        "ignite",
        "timm",
        "ultralytics",
    ),
    "modules in the data set": ("modules_as_transforms",),
    "notebooks": ("test_loops_declined::test_a_notebook_is_declined_with_what_to_do",),
}
LOOPS = {shape.name for shapes in THEMES.values() for shape in shapes} | {f.name for f in FRAMEWORKS}


@pytest.mark.parametrize("idiom", IDIOMS)
def test_is_shown(idiom: str) -> None:
    for shown in IDIOMS[idiom]:
        file, _, test = shown.rpartition("::")
        if file:
            assert re.search(rf"^def {test}\(", (ROOT / "tests" / f"{file}.py").read_text(), re.MULTILINE), shown
        else:
            assert shown in LOOPS


def test_every_loop_shows_something() -> None:
    assert {name for names in IDIOMS.values() for name in names if "::" not in name} == LOOPS
