"""Timers on a data set's transforms: on every form a pipeline has, and gone without a trace."""

from __future__ import annotations

import copy
import functools
import pickle
from types import FunctionType

import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, Dataset, Subset

from fasttrain_doctor.probe.looking_transforms import Transforms

ONE = torch.ones(3)


def double(x):
    return 2 * x


def scaled(x, by):
    return by * x


class Add:
    def __init__(self, by=1):
        self.by = by

    def __call__(self, x):
        return x + self.by


class AddTwice(Add):
    def __call__(self, x):
        return super().__call__(super().__call__(x))


class Negate(nn.Module):
    def forward(self, x):
        return -x


class Compose:
    """As torchvision's and albumentations' are: callable, with a list of steps."""

    def __init__(self, *steps):
        self.transforms = list(steps)

    def __call__(self, x):
        for step in self.transforms:
            x = step(x)
        return x


class Points(Dataset):
    def __init__(self, **attributes):
        self.__dict__.update(attributes)

    def __len__(self):
        return 4

    def __getitem__(self, i):
        x = ONE
        for value in vars(self).values():
            for step in value if isinstance(value, (list, tuple)) else [value]:
                x = step(x)
        return x


class WithMethod(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return self.transform(ONE)

    def transform(self, x):
        return 3 * x


FORMS = {
    "a Compose": (lambda: Points(transform=Compose(Add(), double)), {"Add": 1, "double": 1}),
    "a plain list": (lambda: Points(augment=[double, Add(2), functools.partial(scaled, by=3)]),
                     {"double": 1, "Add": 1, "scaled": 1}),
    "a tuple": (lambda: Points(augment=(double, Add(2), double)), {"double": 1, "Add": 1}),
    "one function": (lambda: Points(transform=double), {"double": 1}),
    "one object": (lambda: Points(target_transform=Add()), {"Add": 1}),
    "a Sequential": (lambda: Points(transform=nn.Sequential(Negate(), nn.Identity())), {"Negate": 1, "Identity": 1}),
    "a method of an object": (lambda: Points(transform=Add().__call__), {"Add.__call__": 1}),
    "a method of the data set": (WithMethod, {"WithMethod.transform": 1}),
    "a call that calls its base's": (lambda: Points(transform=Compose(AddTwice(), Add())), {"AddTwice": 1, "Add": 1}),
    "a subset": (lambda: Subset(Points(transform=Compose(Add())), [0, 1]), {"Add": 1}),
    "several": (lambda: ConcatDataset([Points(transform=Compose(Add())), Points(transform=Compose(double))]), {"Add": 1}),
    "a function in no list": (lambda: Points(whatever=double), {}),
}  # fmt: skip


def called(timers: Transforms) -> dict[str, int]:
    return {t.name.removeprefix(f"{__name__}.").rpartition("modules.linear.")[2]: t.kept[1]
            for t in timers.timers.values() if t.kept[1]}  # fmt: skip


@pytest.mark.parametrize(("make", "calls"), FORMS.values(), ids=FORMS)
def test_each_member_is_timed_by_itself_and_does_what_it_did(make, calls):
    dataset = make()
    expected = dataset[0]
    timers = Transforms()
    timers.put_on(dataset)
    try:
        got = dataset[0]
        timers.keep()
    finally:
        timers.take_off()
    assert timers.why is None
    assert torch.equal(got, expected)
    assert {name.rpartition(".")[2] if "modules" in name else name: n for name, n in called(timers).items()} == calls
    assert torch.equal(dataset[0], expected)
    timers.keep()
    assert set(called(timers).values()) <= {1}, "no call is counted afterwards"


def test_nothing_is_left_on_objects_lists_or_classes():
    dataset = Points(transform=Compose(Add(), double), augment=[double, Negate()], pair=(double, double))
    before = pickle.dumps(dataset)  # first: pickling leaves something on classes itself
    classes = {cls: dict(vars(cls)) for cls in (Add, AddTwice, Negate, Compose, Points)}
    held, steps = dict(vars(dataset)), list(dataset.augment)
    timers = Transforms()
    timers.put_on(dataset)
    assert Add.__call__ is not classes[Add]["__call__"]
    assert dataset.augment[0] is not double
    timers.take_off()
    assert {cls: dict(vars(cls)) for cls in classes} == classes
    assert all(vars(dataset)[name] is value for name, value in held.items())
    assert all(a is b for a, b in zip(dataset.augment, steps, strict=True))
    assert pickle.dumps(dataset) == before


def test_what_is_copied_or_pickled_meanwhile_is_the_original():
    dataset = Points(transform=Compose(Add(), double), augment=[double])
    timers = Transforms()
    timers.put_on(dataset)
    try:
        pickled, copied = pickle.loads(pickle.dumps(dataset)), copy.deepcopy(dataset)
    finally:
        timers.take_off()
    for other in (pickled, copied):
        assert other.augment == [double]
        assert type(other.transform.transforms[0]) is Add
        assert other.transform.transforms[1] is double


def test_a_function_is_found_in_its_list_meanwhile_and_is_still_a_function():
    dataset = Points(augment=[Add(), double, Negate()])
    timers = Transforms()
    timers.put_on(dataset)
    try:
        assert double in dataset.augment
        assert dataset.augment.index(double) == 1
        assert isinstance(dataset.augment[1], FunctionType)
        dataset.augment.remove(double)
    finally:
        timers.take_off()
    assert [type(step) for step in dataset.augment] == [Add, Negate]


class Unopened:
    """As objects that open a file, or need a request under way, at the first thing asked of them."""

    __slots__ = ()

    def __getattr__(self, name):
        raise RuntimeError(f"{name} was asked for too early")


class Unbound:
    """As proxies that stand for another object wholly."""

    @property
    def __class__(self):
        raise RuntimeError("there is nothing that this stands for")

    @property
    def __dict__(self):
        raise RuntimeError("there is nothing that this stands for")


def test_attributes_that_must_not_be_asked_are_not_and_take_no_timer_away():
    dataset = Points(file=Unopened(), dataset=Unbound(), datasets=[Unopened(), Unbound()], augment=[Add(), double])
    timers = Transforms()
    timers.put_on(dataset)
    try:
        assert timers.why is None
        assert len(timers.timers) == 2
    finally:
        timers.take_off()


def test_a_function_that_belongs_to_no_module_has_its_own_name_alone():
    space = {}
    exec("def cell(x): return x", space)
    timers = Transforms()
    timers.put_on(Points(augment=[space["cell"]]))
    assert [timer.name for timer in timers.timers.values()] == ["cell"]
    timers.take_off()


def test_what_the_script_itself_changes_meanwhile_stays_changed():
    dataset = Points(augment=[double, Add()])
    timers = Transforms()
    timers.put_on(dataset)
    dataset.augment.insert(0, Add(5))
    dataset.transform = double
    timers.take_off()
    assert [type(step) for step in dataset.augment[:1]] == [Add]
    assert dataset.augment[1] is double
    assert dataset.transform is double


def test_the_same_step_of_several_data_sets_is_one():
    two = [Points(transform=Compose(Add(), double)) for _ in range(2)]
    timers = Transforms()
    timers.put_on(ConcatDataset(two))
    for each in two:
        each[0]
    timers.keep()
    timers.take_off()
    assert [timer.kept[1] for timer in timers.timers.values()] == [2, 2]


def test_a_data_set_without_transforms_has_none():
    timers = Transforms()
    timers.put_on([1, 2, 3])
    timers.put_on(None)
    timers.take_off()
    assert not timers.timers
    assert timers.why is None


def failing(x):
    raise ValueError("no image")


class Failing:
    def __call__(self, x):
        raise ValueError("no image")


@pytest.mark.parametrize("step", [failing, Failing()], ids=["function", "object"])
def test_an_error_has_the_traceback_it_had(step):
    dataset = Points(transform=Compose(step))

    def places():
        with pytest.raises(ValueError, match="no image") as raised:
            dataset[0]
        return [entry.name for entry in raised.traceback]

    expected = places()
    timers = Transforms()
    timers.put_on(dataset)
    try:
        assert places() == expected
    finally:
        timers.take_off()
