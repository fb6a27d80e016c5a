"""Generates the messages from the .proto that the server ships; everything else is in pyproject.toml."""

import os
import shutil

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = os.path.dirname(os.path.abspath(__file__))
NAME = os.path.join("kakeya", "v1", "runtime.proto")
# In the project's tree, or in a source distribution, which has a copy.
PLACES = (os.path.join(HERE, "..", "..", "src", "serve", "proto"), os.path.join(HERE, "proto"))


def proto_directory() -> str:
    for place in PLACES:
        if os.path.exists(os.path.join(place, NAME)):
            return place
    raise FileNotFoundError(f"{NAME} is in none of {PLACES}")


def generate(target: str) -> None:
    import grpc_tools
    from grpc_tools import protoc

    os.makedirs(target, exist_ok=True)
    arguments = ["protoc", f"-I{proto_directory()}", f"-I{os.path.join(os.path.dirname(grpc_tools.__file__), '_proto')}",
                 f"--python_out={target}", f"--pyi_out={target}", f"--grpc_python_out={target}", NAME]
    if protoc.main(arguments) != 0:
        raise RuntimeError("protoc failed")


class BuildWithMessages(build_py):
    def run(self) -> None:
        super().run()
        # kakeya/v1/runtime_pb2.py: where other generated code of this interface would look for it, too.
        generate(HERE if self.editable_mode else self.build_lib)


class SourceWithProto(sdist):
    def make_release_tree(self, base_dir: str, files: "list[str]") -> None:
        super().make_release_tree(base_dir, files)
        target = os.path.join(base_dir, "proto", NAME)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copy(os.path.join(proto_directory(), NAME), target)


setup(cmdclass={"build_py": BuildWithMessages, "sdist": SourceWithProto})
