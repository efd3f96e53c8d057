from __future__ import annotations

import os
import select
import subprocess
import sys

SCRIPT = """
import os, sys
from shoal.launch import death_pipe

fd = int(sys.argv[1])
death_pipe.keep(fd)
print(os.path.exists(f"/proc/self/fd/{fd}"), flush=True)
sys.stdin.read()
"""


def test_a_death_pipe_holds_its_end_until_its_process_is_killed() -> None:
    dies, lives = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(lives)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=(lives,),
    ) as process:
        os.close(lives)
        assert process.stdout is not None
        assert process.stdout.readline() == "False\n"  # only the death pipe's own table has it
        assert select.select([dies], [], [], 0.0)[0] == []
        process.kill()
        assert select.select([dies], [], [], 60.0)[0] == [dies]
        assert os.read(dies, 1) == b""
    os.close(dies)
