"""Kubelet's part in MPS daemons: runs their pods' scripts as processes, with paths of the test."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path

from dra.common.resources import PODS, Obj
from dra.kube.errors import KubeError
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.helpers.rig import Rig

SELECTOR = "app.kubernetes.io/component=mps-daemon"


class DaemonPods:
    """Pods of daemons on the rig's node. ``holds``: what is deleted is not ended."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.holds = False
        self.runs = True
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="daemon pods")
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        for process in self._processes.values():
            _end(process, signal.SIGKILL)

    def pods(self) -> list[Obj]:
        return list(
            self.rig.api.list(
                PODS,
                namespace="default",
                label_selector=SELECTOR,
                field_selector=f"spec.nodeName={self.rig.node}",
            ).items
        )

    def crash(self, uid: str) -> None:
        """Kill the control daemon of a claim and wait for its container to end."""
        running = [p for p in self._processes.values() if p.poll() is None]
        pid = (self.rig.roots.state / "mps" / uid / "pipe/nvidia-cuda-mps-control.pid").read_text()
        os.kill(int(pid), signal.SIGKILL)
        wait_for("the end of the container", lambda: any(p.poll() is not None for p in running))

    def _loop(self) -> None:
        while not self._stop.wait(0.02):
            try:
                for pod in self.pods():
                    self._serve(pod)
            except KubeError:
                continue

    def _serve(self, pod: Obj) -> None:
        metadata = pod["metadata"]
        process = self._processes.get(metadata["uid"])
        if "deletionTimestamp" in metadata:
            if self.holds:
                return
            if process is not None:
                _end(process, signal.SIGTERM)
            self.rig.api.delete(PODS, metadata["name"], namespace="default", grace_seconds=0)
        elif self.runs and (process is None or process.poll() is not None):
            self._processes[metadata["uid"]] = self._start(pod)

    def _start(self, pod: Obj) -> subprocess.Popen[bytes]:
        [container] = pod["spec"]["containers"]
        host = str(self.rig.roots.host)
        paths = {v["name"]: v.get("hostPath", {}).get("path", "") for v in pod["spec"]["volumes"]}
        mounted = {m["mountPath"]: paths[m["name"]] for m in container["volumeMounts"]}
        shell, option, script = container["command"]
        script = script.replace("/mps/", f"{mounted['/mps']}/")
        script = script.replace("/tmp/libraries", f"{mounted['/mps']}/libraries")
        env = {e["name"]: e["value"] for e in container["env"]}
        nodes = Path(f"{mounted['/mps']}/dev")
        env["NODES"] = " ".join(f"{nodes}{node}" for node in env["NODES"].split())
        for name in ("CONTROL", "LIBRARIES"):
            env[name] = env[name].replace("/host/", f"{host}/")
        env["CUDA_MPS_PIPE_DIRECTORY"] = mounted[env["CUDA_MPS_PIPE_DIRECTORY"]]
        return subprocess.Popen(
            [shell, option, script],
            env={**env, "PATH": f"{_programs(self.rig)}:{os.environ['PATH']}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def _programs(rig: Rig) -> Path:
    """A folder with a ``mknod`` that makes files with the numbers of nodes."""
    folder = rig.folder / "programs"
    folder.mkdir(exist_ok=True)
    program = folder / "mknod"
    program.write_text('#!/bin/sh\necho "$2 $4 $5 $6" > "$3"\n')
    program.chmod(0o755)
    return folder


def _end(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    if process.poll() is None:
        process.send_signal(number)
        if number is signal.SIGKILL:
            os.killpg(process.pid, number)
        process.wait()


def control(rig: Rig, uid: str, command: str) -> str:
    """The answer of a claim's daemon to a command, as ``nvidia-cuda-mps-control`` prints it."""
    pipe = rig.roots.state / "mps" / uid / "pipe"
    done = subprocess.run(
        [Path(rig.roots.host) / "usr/bin/nvidia-cuda-mps-control"],
        input=f"{command}\n",
        env={"PATH": os.environ["PATH"], "CUDA_MPS_PIPE_DIRECTORY": str(pipe)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()
