# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""Who uses a card, by the files that processes have open."""

from nova_gpu_passthru.host import pci
from nova_gpu_passthru.host import processes
from tests import proc_tree
from tests.unit import base

GPU, AUDIO, OTHER = '0000:65:00.0', '0000:65:00.1', '0000:66:00.0'
HOST = f"""
{GPU} 030000 10de:1ff2 driver=nvidia group=34
{AUDIO} 040300 10de:10fa driver=snd_hda_intel group=34
{OTHER} 030200 10de:2330 driver=nvidia group=35
"""


class ProcessesTest(base.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.sysfs = self.tree(HOST)
        self.host = proc_tree.ProcTree(self.tree('').root, self.sysfs)
        self.processes = processes.Processes(pci.Sysfs(self.sysfs.root),
                                             self.host.root)

    def users(self, *addresses: str) -> processes.Users:
        return self.processes.users(map(pci.PCIAddress.parse, addresses))

    # https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1119
    def test_process_that_has_nvidias_file_open(self) -> None:
        self.host.serve_nvidia(GPU, 0)
        self.host.serve_nvidia(OTHER, 1)
        self.host.run(812, 'nvidia-persiste', 'nvidiactl', 'nvidia0')
        self.host.run(900, 'python3', 'nvidia1')
        self.host.run(901, 'bash', 'null')
        self.assertEqual('nvidia-persiste (pid 812) uses it',
                         str(self.users(GPU, AUDIO)))
        self.assertEqual(('python3 (pid 900)',), self.users(OTHER).processes)

    def test_displays_and_sound_servers(self) -> None:
        self.host.serve(GPU, 'drm/card1', 'dri/card1')
        self.host.serve(GPU, 'drm/renderD129', 'dri/renderD129')
        self.host.serve(AUDIO, 'sound/card2/controlC2', 'snd/controlC2')
        self.host.run(700, 'Xorg', 'dri/card1')
        self.host.run(701, 'pipewire', 'snd/controlC2')
        self.host.run(702, 'ffmpeg', 'dri/renderD128')
        users = self.users(GPU, AUDIO)
        self.assertEqual(('Xorg (pid 700)', 'pipewire (pid 701)'),
                         users.processes)

    def test_files_behind_a_bridge_are_not_the_bridges(self) -> None:
        sysfs = self.tree("""
            0000:64:00.0 060400 8086:2030 driver=pcieport group=1
            0000:65:00.0 030000 1002:73ff group=2 below=0000:64:00.0""")
        host = proc_tree.ProcTree(self.host.root, sysfs)
        host.serve(GPU, 'drm/card1', 'dri/card1')
        look = processes.Processes(pci.Sysfs(sysfs.root), host.root)
        self.assertEqual((), look.users(
            [pci.PCIAddress.parse('0000:64:00.0')]).files)

    def test_process_that_may_not_be_looked_into(self) -> None:
        self.host.serve_nvidia(GPU, 0)
        self.host.run_unseen(812)
        users = self.users(GPU)
        self.assertEqual(((), 1), (users.processes, users.unseen))
        self.assertIn(f'1 processes of other users cannot be looked into; as '
                      f'root of the host, '
                      f'"fuser -v {self.host.root}/dev/nvidia0"', str(users))

    # Documentation/filesystems/proc.rst, hidepid=2; a container that has
    # another PID namespace than the host sees no thread of the kernel either.
    def test_processes_that_are_not_even_listed(self) -> None:
        self.host.serve_nvidia(GPU, 0)
        self.host.end(2)
        self.assertIn(f'processes of other users are not shown here (/proc '
                      f'is mounted with hidepid, or of a container); as root '
                      f'of the host, "fuser -v {self.host.root}/dev/nvidia0"',
                      str(self.users(GPU)))
        self.host.run(2, 'sh')
        self.assertIn('are not shown here', str(self.users(GPU)))

    def test_process_that_ends_meanwhile(self) -> None:
        self.host.serve_nvidia(GPU, 0)
        (self.host.run(812, 'job') / 'fd').rmdir()
        self.assertEqual((0, ''), (self.users(GPU).unseen,
                                   str(self.users(GPU))))

    def test_card_without_files_has_no_users(self) -> None:
        self.host.run(812, 'job', 'null')
        self.assertEqual(processes.Users(), self.users(GPU))
