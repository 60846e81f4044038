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

"""Settings of gunicorn, which runs each API.

They come from here because keystone, placement and neutron parse sys.argv as
their own options.
"""

import os

import sqlalchemy.orm

wsgi_app = os.environ['LAB_WSGI_APPLICATION']
bind = f'127.0.0.1:{os.environ["LAB_PORT"]}'
worker_class = 'gthread'
workers = 1
threads = 8
timeout = 180
keepalive = 30
control_socket = os.environ['LAB_CONTROL_SOCKET']


def post_worker_init(worker: object) -> None:
    """Called by gunicorn when the application is loaded."""
    # Neutron's Port.port_forwardings does not exist before that, so the first
    # GET of ports would answer 500.
    sqlalchemy.orm.configure_mappers()
