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

import re

from tests.lab.lab import panic
from tests.unit import base
from tests.unit import golden


class PanicTest(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.console = (
            golden.DATA / 'consoles/panic-in-kvm.txt').read_bytes().decode()

    def test_in_kvm(self) -> None:
        self.assertTrue(panic.is_in_kvm(self.console))

    def test_elsewhere(self) -> None:
        # What is left has names from KVM, which only lay on the stack.
        elsewhere = re.sub(r'\]  (?!\? ).* \[kvm.*', ']  [gone]', self.console)
        self.assertIn('? svm_get_segment+0x18/0x100 [kvm_amd]', elsewhere)
        self.assertTrue(panic.trace(elsewhere))
        self.assertFalse(panic.is_in_kvm(elsewhere))

    def test_fault_of_which_the_host_does_not_die(self) -> None:
        survived = self.console.replace('Kernel panic', 'BUG: a kernel')
        self.assertEqual('', panic.trace(survived))
        self.assertFalse(panic.is_in_kvm(survived))

    def test_trace_begins_with_the_fault_before_the_panic(self) -> None:
        fault = '[  298.817000] BUG: unable to handle page fault\r\n'
        text = self.console.replace('[  298.818389] Kernel panic',
                                    fault + '[  298.818389] Kernel panic')
        self.assertTrue(panic.trace(text).startswith(fault))
