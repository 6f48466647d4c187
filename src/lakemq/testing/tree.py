"""The names of a simulated disk: directories as the program sees them, as they are durable, and the steps between.

Steps on one directory become durable in the order in which they were made, as ext4 and xfs do it; steps on different
directories in any order. A rename is one step even if it spans two directories.
"""

import errno
from dataclasses import dataclass, field
from typing import NoReturn

from lakemq.storage.disk import split_path
from lakemq.testing.content import FileNode


@dataclass(eq=False, slots=True)
class NameStep:
    """One change of names, which happens whole or not at all."""

    changes: tuple[tuple["Directory", str, "Node | None"], ...]  # None: the name goes
    directories: tuple["Directory", ...]  # whose earlier steps come first
    needs: tuple["NameStep", ...] = ()  # steps on other directories that come first too

    def settle(self) -> None:
        for directory, name, node in self.changes:
            _put(directory.durable, name, node)


@dataclass(eq=False, slots=True)
class Directory:
    """A directory. `made_by` is the step that last gave it its name; None for the root."""

    seen: dict[str, "Node"] = field(default_factory=dict)
    durable: dict[str, "Node"] = field(default_factory=dict)
    made_by: NameStep | None = None


Node = FileNode | Directory


class Tree:
    """Directories and files from the root down, with the errors a file system gives."""

    def __init__(self) -> None:
        self.root = Directory()
        self.unsynced: list[NameStep] = []  # in the order in which they were made

    def copy(self) -> "Tree":
        """An independent copy; only the pages of files are shared, and those never change."""
        nodes: dict[Node, Node] = {}
        steps: dict[NameStep, NameStep] = {}

        def copy_entries(entries: dict[str, Node]) -> dict[str, Node]:
            return {name: copy_node(node) for name, node in entries.items()}

        def copy_node(node: Node) -> Node:
            if node in nodes:
                return nodes[node]
            if isinstance(node, FileNode):
                nodes[node] = node.copy()
            else:
                nodes[node] = twin = Directory()
                twin.seen, twin.durable = copy_entries(node.seen), copy_entries(node.durable)
            return nodes[node]

        def copy_directory(directory: Directory) -> Directory:
            twin = copy_node(directory)
            assert isinstance(twin, Directory)
            return twin

        twin = Tree()
        twin.root = copy_directory(self.root)
        for step in self.unsynced:
            changes = [(copy_directory(where), name, node and copy_node(node)) for where, name, node in step.changes]
            directories = [copy_directory(directory) for directory in step.directories]
            needs = [steps[each] for each in step.needs if each in steps]
            steps[step] = NameStep(tuple(changes), tuple(directories), tuple(needs))
        for node, other in nodes.items():
            if isinstance(node, Directory) and isinstance(other, Directory) and node.made_by:
                other.made_by = steps.get(node.made_by)  # one that was synced no longer matters
        twin.unsynced = list(steps.values())
        return twin

    def find(self, path: str) -> Node | None:
        """What has this name, if anything. NotADirectoryError if a name on the way is a file's."""
        node: Node | None = self.root
        for name in split_path(path):
            if isinstance(node, FileNode):
                refuse(errno.ENOTDIR, path)
            if node is None:
                return None
            node = node.seen.get(name)
        return node

    def place(self, path: str) -> tuple[Directory, str]:
        """The directory that holds or would hold this name, and the last part of it."""
        names = split_path(path)
        if not names:
            raise ValueError("the root itself is neither renamed nor removed")
        parent = self.find("/".join(names[:-1]))
        if parent is None:
            refuse(errno.ENOENT, path)
        if isinstance(parent, FileNode):
            refuse(errno.ENOTDIR, path)
        return parent, names[-1]

    def plan_create(self, path: str, node: Node) -> NameStep:
        directory, name = self.place(path)
        return NameStep(((directory, name, node),), (directory,))

    def plan_remove(self, path: str) -> NameStep:
        directory, name = self.place(path)
        node = directory.seen.get(name)
        if node is None:
            refuse(errno.ENOENT, path)
        if isinstance(node, FileNode):
            return NameStep(((directory, name, None),), (directory,))
        if node.seen:
            refuse(errno.ENOTEMPTY, path)
        return NameStep(((directory, name, None),), (directory, node))  # it cannot go before what left it

    def plan_rename(self, source: str, target: str) -> NameStep | None:
        """None if there is nothing to do."""
        (old, old_name), (new, new_name) = self.place(source), self.place(target)
        node = old.seen.get(old_name)
        if node is None:
            refuse(errno.ENOENT, source)
        replaced = new.seen.get(new_name)
        if replaced is node:
            return None
        if isinstance(node, Directory) and target.startswith(source + "/"):
            refuse(errno.EINVAL, target)
        directories = [old, new]
        if isinstance(replaced, Directory):
            if source.startswith(target + "/"):
                refuse(errno.ENOTEMPTY, target)
            if isinstance(node, FileNode):
                refuse(errno.EISDIR, target)
            if replaced.seen:
                refuse(errno.ENOTEMPTY, target)
            directories.append(replaced)
        elif isinstance(replaced, FileNode) and isinstance(node, Directory):
            refuse(errno.ENOTDIR, target)
        # Into a directory that is itself not durable yet: a rename never loses the file, so that one comes first.
        needs = self._makers(target) if new is not old else ()
        return NameStep(((old, old_name, None), (new, new_name, node)), tuple(dict.fromkeys(directories)), needs)

    def do(self, step: NameStep) -> None:
        """What the program asked for: it sees it at once, it is durable later."""
        for directory, name, node in step.changes:
            _put(directory.seen, name, node)
            if isinstance(node, Directory):
                node.made_by = step
        self.unsynced.append(step)

    def sync(self, directory: Directory) -> None:
        """Make the steps on one directory durable, and those that must come before them."""
        directories, wanted = {directory}, set[NameStep]()
        for step in reversed(self.unsynced):  # each one can only need earlier ones
            if step in wanted or not directories.isdisjoint(step.directories):
                wanted.add(step)
                wanted.update(step.needs)
                directories.update(step.directories)
        for step in self.unsynced:
            if step in wanted:
                step.settle()
        self.unsynced = [step for step in self.unsynced if step not in wanted]

    def files(self) -> list[FileNode]:
        """Every file that has a name now."""
        return [
            node for directory in self.directories() for node in directory.seen.values() if isinstance(node, FileNode)
        ]

    def directories(self) -> list[Directory]:
        """Every directory that has a name now, the root first."""
        directories = [self.root]
        for directory in directories:  # grows as we go down
            directories += [node for node in directory.seen.values() if isinstance(node, Directory)]
        return directories

    def _makers(self, path: str) -> tuple[NameStep, ...]:
        """The steps that made the directories above a name."""
        names = split_path(path)
        above = [self.find("/".join(names[:count])) for count in range(1, len(names))]
        return tuple(node.made_by for node in above if isinstance(node, Directory) and node.made_by)


def refuse(code: int, path: str) -> NoReturn:
    """Raise the OSError of this code, with the text the system gives it as far as we need one."""
    raise OSError(code, errno.errorcode[code], path)


def _put(entries: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        entries.pop(name, None)
    else:
        entries[name] = node
