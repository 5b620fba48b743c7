"""The ways in which a program changes a name that a class reads: by subclasses, assignments, patches and hooks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Way:
    """A way to replace the attribute `name` by `value`.

    Attributes:
        name: its name in test reports.
        text: the code that makes the change.
        made: an expression for an instance.
        kinds: the kinds of parts that it applies to.
        outside: whether `text` is in another file of the project, which imports the first as `model`.
    """

    name: str
    text: str
    made: str = "made()"
    kinds: tuple[str, ...] = ("child", "attribute")
    outside: bool = False


WAYS = (
    Way(
        "a subclass assigns it",
        """
class Child(Base):
    def __init__(self):
        super().__init__()
        self.{name} = {value}
""",
        made="Child()",
    ),
    Way(
        "a subclass of a subclass assigns it",
        """
class Middle(Base):
    pass


class Child(Middle):
    def __init__(self):
        super().__init__()
        self.{name} = {value}
""",
        made="Child()",
    ),
    Way(
        "a subclass defines it",
        """
class Child(Base):
    {name} = {value}
""",
        made="Child()",
        kinds=(
            "method",
            "attribute class",
        ),
    ),
    Way(
        "a subclass has it as a property",
        """
class Child(Base):
    @property
    def {name}(self):
        return {value}
""",
        made="Child()",
        kinds=("attribute class",),
    ),
    Way(
        "a mixin defines it",
        """
class Mixin:
    {name} = {value}


class Child(Mixin, Base):
    pass
""",
        made="Child()",
        kinds=(
            "method",
            "attribute class",
        ),
    ),
    Way(
        "a mixin assigns it",
        """
class Mixin:
    def change(self):
        self.{name} = {value}
        return self


class Child(Base, Mixin):
    pass
""",
        made="Child().change()",
    ),
    Way(
        "a subclass in another file assigns it",
        """
class Child(model.Base):
    def __init__(self):
        super().__init__()
        self.{name} = {value}
""",
        made="Child()",
        outside=True,
    ),
    Way(
        "a class of another file inherits from what it looks up",
        """
MODELS = {{"base": model.Base}}


class Child(MODELS["base"]):
    def __init__(self):
        super().__init__()
        self.{name} = {value}
""",
        made="Child()",
        outside=True,
    ),
    Way(
        "a class inherits from what a call gives",
        """
def get_class(name):
    return globals()[name]


class Child(get_class("Base")):
    def __init__(self):
        super().__init__()
        self.{name} = {value}
""",
        made="Child()",
    ),
    Way(
        "a subclass in another file imports the class",
        """
from model import Base as B


class Child(B):
    def __init__(self):
        super().__init__()
        self.{name} = {value}
""",
        made="Child()",
        outside=True,
    ),
    Way(
        "a subclass in another file defines it",
        """
from model import Base


class Child(Base):
    {name} = {value}
""",
        made="Child()",
        kinds=(
            "method",
            "attribute class",
        ),
        outside=True,
    ),
    Way(
        "an instance is assigned another",
        """
def made():
    m = Base()
    m.{name} = {value}
    return m
""",
    ),
    Way(
        "an argument is assigned another",
        """
def change(m):
    m.{name} = {value}
    return m


def made():
    return change(Base())
""",
    ),
    Way(
        "an instance in a list is assigned another",
        """
def made():
    every = [Base() for _ in range(2)]
    for m in every:
        m.{name} = {value}
    return every[0]
""",
    ),
    Way(
        "a model that holds it assigns another",
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = Base()
        self.base.{name} = {value}

    def forward(self, *x):
        return self.base(*x)
""",
        made="Net()",
    ),
    Way(
        "setattr with its name",
        """
def made():
    m = Base()
    setattr(m, "{name}", {value})
    return m
""",
    ),
    Way(
        "setattr with a name that is given",
        """
def change(m, name, value):
    setattr(m, name, value)
    return m


def made():
    return change(Base(), "{name}", {value})
""",
    ),
    Way(
        "setattr with the names of a list",
        """
def made():
    m = Base()
    names = ["{name}", "other"]
    for name in names:
        setattr(m, name, {value})
    return m
""",
    ),
    Way(
        "every child of a kind is replaced",
        """
def change(model):
    for name, child in model.named_children():
        setattr(model, name, {value})
    return model


def made():
    return change(Base())
""",
        kinds=("child one",),
    ),
    Way(
        "every child of a kind that is given is replaced",
        """
def change(model, kind, new):
    for name, child in model.named_children():
        if isinstance(child, kind):
            setattr(model, name, new)
        else:
            change(child, kind, new)
    return model


def made():
    return change(Base(), type(Base().{name}), {value})
""",
        kinds=("child one",),
    ),
    Way(
        "another file replaces every child of a kind that is given",
        """
class Swap:
    def __init__(self, kinds):
        self.kinds = kinds

    def change(self, net, new):
        for name, child in net.named_children():
            if isinstance(child, self.kinds):
                setattr(net, name, new)
        return net


def made():
    return Swap((type(model.Base().{name}),)).change(model.Base(), {value})
""",
        kinds=("child one",),
        outside=True,
    ),
    Way(
        "the table of children is written",
        """
def made():
    m = Base()
    m._modules["{name}"] = {value}
    return m
""",
        kinds=("child",),
    ),
    Way(
        "add_module under its name",
        """
def made():
    m = Base()
    m.add_module("{name}", {value})
    return m
""",
        kinds=("child",),
    ),
    Way(
        "a file that imports it assigns another",
        """
def made():
    m = model.Base()
    m.{name} = {value}
    return m
""",
        outside=True,
    ),
    Way(
        "the class is given another",
        """
Base.{name} = {value}
""",
        made="Base()",
        kinds=(
            "method",
            "attribute class",
        ),
    ),
    Way(
        "the class is given another by setattr",
        """
setattr(Base, "{name}", {value})
""",
        made="Base()",
        kinds=(
            "method",
            "attribute class",
        ),
    ),
    Way(
        "another file gives the class another",
        """
model.Base.{name} = {value}
""",
        made="model.Base()",
        kinds=(
            "method",
            "attribute class",
        ),
        outside=True,
    ),
    Way(
        "mock gives the class another",
        """
mock.patch.object(Base, "{name}", {value}).start()
""",
        made="Base()",
        kinds=(
            "method",
            "attribute class",
        ),
    ),
    Way(
        "an instance is given another method",
        """
def made():
    m = Base()
    m.{name} = ({value}).__get__(m)
    return m
""",
        kinds=("method",),
    ),
    Way(
        "globals are written",
        """
globals()["{name}"] = {value}
""",
        made="Base()",
        kinds=("helper",),
    ),
    Way(
        "the module is written",
        """
setattr(sys.modules[__name__], "{name}", {value})
""",
        made="Base()",
        kinds=("helper",),
    ),
    Way(
        "another file writes the module",
        """
model.{name} = {value}
""",
        made="model.Base()",
        kinds=("helper",),
        outside=True,
    ),
    Way(
        "mock writes the module",
        """
mock.patch("model.{name}", {value}).start()
""",
        made="model.Base()",
        kinds=("helper",),
        outside=True,
    ),
    Way(
        "a global statement rebinds it",
        """
def change():
    global {name}
    {name} = {value}


change()
""",
        made="Base()",
        kinds=("helper",),
    ),
    Way(
        "a hook on the child",
        """
LOG = []


def made():
    m = Base()
    m.{name}.register_forward_hook(lambda mod, i, o: o * 2)
    return m
""",
        kinds=("child",),
    ),
    Way(
        "a hook before the child",
        """
def made():
    m = Base()
    m.{name}.register_forward_pre_hook(lambda mod, i: (i[0] * 2,))
    return m
""",
        kinds=("child",),
    ),
    Way(
        "a hook on every module",
        """
def made():
    m = Base()
    for child in m.children():
        child.register_forward_hook(lambda mod, i, o: o * 2)
    return m
""",
        kinds=("child",),
    ),
    Way(
        "a hook on a module that is looked up",
        """
def made():
    m = Base()
    m.get_submodule("{name}").register_forward_hook(lambda mod, i, o: o * 2)
    return m
""",
        kinds=("child",),
    ),
    Way(
        "a hook by way of a name",
        """
def made():
    m = Base()
    child = m.{name}
    child.register_forward_hook(lambda mod, i, o: o * 2)
    return m
""",
        kinds=("child",),
    ),
    Way(
        "a hook from another file",
        """
def made():
    m = model.Base()
    m.{name}.register_forward_hook(lambda mod, i, o: o * 2)
    return m
""",
        kinds=("child",),
        outside=True,
    ),
)
