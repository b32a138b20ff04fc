"""What a spec says, and which specs are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml

from cdi.spec import (
    CdiError,
    Device,
    DeviceNode,
    Edits,
    Hook,
    Mount,
    Spec,
    claim_kind,
    device_id,
    encode,
    validate,
)
from cdi.store import render
from tests.kubeletplugin.cdi.rules import hold

NODE = DeviceNode("/dev/nvidia0", major=195, minor=0)
CAPABILITY = DeviceNode("/dev/nvidia-caps/nvidia-cap3", major=237, minor=3, file_mode=0o444)
HOOK = Hook(
    "createContainer",
    "/usr/bin/nvidia-cdi-hook",
    ("nvidia-cdi-hook", "update-ldcache", "--folder", "/usr/lib64"),
    ("NVIDIA_CTK_DEBUG=false",),
)
SPEC = Spec(
    kind=claim_kind("mig.dra.dev"),
    devices=(Device(device_id("1e3", "gpu-0"), Edits(nodes=(NODE, CAPABILITY))),),
    common=Edits(
        env=("NVIDIA_VISIBLE_DEVICES=void",),
        nodes=(DeviceNode("/dev/nvidiactl", "/run/nvidia/driver/dev/nvidiactl"),),
        mounts=(Mount("/run/nvidia/driver/usr/bin/nvidia-smi", "/usr/bin/nvidia-smi"),),
    ),
)


def test_a_spec_is_written_in_the_words_of_the_specification() -> None:
    validate(SPEC)
    hold(encode(SPEC))
    assert encode(SPEC) == {
        "cdiVersion": "0.5.0",
        "kind": "k8s.mig.dra.dev/claim",
        "devices": [
            {
                "name": "1e3-gpu-0",
                "containerEdits": {
                    "deviceNodes": [
                        {
                            "path": "/dev/nvidia0",
                            "type": "c",
                            "major": 195,
                            "minor": 0,
                            "permissions": "rw",
                        },
                        {
                            "path": "/dev/nvidia-caps/nvidia-cap3",
                            "type": "c",
                            "major": 237,
                            "minor": 3,
                            "fileMode": 292,
                            "permissions": "rw",
                        },
                    ]
                },
            }
        ],
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            "deviceNodes": [
                {
                    "path": "/dev/nvidiactl",
                    "hostPath": "/run/nvidia/driver/dev/nvidiactl",
                    "permissions": "rw",
                }
            ],
            "mounts": [
                {
                    "hostPath": "/run/nvidia/driver/usr/bin/nvidia-smi",
                    "containerPath": "/usr/bin/nvidia-smi",
                    "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"],
                }
            ],
        },
    }


def test_the_version_is_the_oldest_that_knows_everything() -> None:
    plain = Spec("a/b", (Device("0gpu", Edits(nodes=(NODE,), hooks=(HOOK,))),))
    assert encode(plain)["cdiVersion"] == "0.5.0"
    for groups in (
        replace(plain, common=Edits(gids=(44,))),
        replace(plain, devices=(Device("0gpu", Edits(gids=(44,))),)),
    ):
        assert encode(groups)["cdiVersion"] == "0.7.0"


def test_hooks_and_groups_are_written_in_the_words_of_the_specification() -> None:
    node = replace(NODE, file_mode=0o660, gid=44)
    spec = replace(SPEC, common=Edits(nodes=(node,), hooks=(HOOK,), gids=(44, 107)))
    validate(spec)
    hold(encode(spec))
    assert encode(spec)["containerEdits"] == {
        "deviceNodes": [
            {
                "path": "/dev/nvidia0",
                "type": "c",
                "major": 195,
                "minor": 0,
                "fileMode": 432,
                "permissions": "rw",
                "gid": 44,
            }
        ],
        "hooks": [
            {
                "hookName": "createContainer",
                "path": "/usr/bin/nvidia-cdi-hook",
                "args": ["nvidia-cdi-hook", "update-ldcache", "--folder", "/usr/lib64"],
                "env": ["NVIDIA_CTK_DEBUG=false"],
            }
        ],
        "additionalGids": [44, 107],
    }


def saying(text: str) -> Spec:
    return with_device("d", Edits(env=(f"A={text}",), hooks=(replace(HOOK, args=(text,)),)))


@pytest.mark.parametrize("text", ["1e3", "0o7", "1_000", "null", "yes", "0x1f", "2026-01-01", "~"])
def test_strings_that_look_like_something_else_stay_strings_in_every_yaml(text: str) -> None:
    data = render(saying(text))
    assert f'- "{text}"\n'.encode() in data
    assert b'"major": 195\n' in render(SPEC)
    assert yaml.safe_load(data) == encode(saying(text))


def with_device(name: str, edits: Edits | None = None) -> Spec:
    return replace(SPEC, devices=(Device(name, edits or Edits(nodes=(NODE,))),))


def with_node(**changes: object) -> Spec:
    node = replace(NODE, **changes)  # type: ignore[arg-type]
    return with_device("d", Edits(nodes=(node,)))


def with_hook(**changes: object) -> Spec:
    hook = replace(HOOK, **changes)  # type: ignore[arg-type]
    return replace(SPEC, common=Edits(hooks=(hook,)))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (replace(SPEC, kind="nvidia"), "is not <vendor>/<class>"),
        (replace(SPEC, kind="9a/claim"), "is not <vendor>/<class>"),
        (replace(SPEC, kind="a/b/c"), "is not <vendor>/<class>"),
        (replace(SPEC, kind="a-/c"), "is not <vendor>/<class>"),
        (replace(SPEC, kind="a.b/c"), "is not <vendor>/<class>"),
        (replace(SPEC, kind="a/claim"), "is not <vendor>/<class>"),
        (replace(SPEC, devices=()), "no devices"),
        (replace(SPEC, devices=SPEC.devices * 2), "stands there twice"),
        (with_device("a/b"), "device name 'a/b' is not allowed"),
        (with_device("-a"), "device name '-a' is not allowed"),
        (with_device(""), "device name '' is not allowed"),
        (with_device("a\n"), "is not allowed"),
        (replace(SPEC, devices=(Device("d", Edits()),)), "changes nothing"),
        (with_device("d", Edits(env=("NOVALUE",))), "is not NAME=value"),
        (with_device("d", Edits(env=("=x",))), "is not NAME=value"),
        (with_node(path="dev/nvidia0"), "is not an absolute path"),
        (with_node(path="/dev/../etc/passwd"), "is not an absolute path"),
        (with_node(host_path="x"), "is not an absolute path"),
        (with_hook(path="nvidia-cdi-hook"), "is not an absolute path"),
        (with_device("d", Edits(nodes=(NODE, NODE))), "/dev/nvidia0 stands there twice"),
        (with_device("d", Edits(mounts=(Mount("a", "/b"),))), "is not an absolute path"),
        (with_device("d", Edits(mounts=(Mount("/a", "b"),))), "is not an absolute path"),
        (with_device("d", Edits(mounts=(Mount("/a", "/b"),) * 2)), "/b stands there twice"),
    ],
)
def test_a_spec_that_a_runtime_would_skip_is_refused_with_the_field(
    spec: Spec, message: str
) -> None:
    with pytest.raises(CdiError) as caught:
        validate(spec)
    assert message in str(caught.value)
