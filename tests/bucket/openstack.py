# SPDX-License-Identifier: Apache-2.0
# OpenStack Swift on loopback, out of Debian's python3-swift alone: what server.sh runs as "swift".
#
#   openstack.py setup DIR PROXY ACCOUNT CONTAINER OBJECT     rings and configurations for four servers on these ports
#   openstack.py serve DIR proxy|account|container|object     one of them
#
# One replica, one device (a folder), no replicators, no memcached: filter_factory() is a cache in the proxy's own memory.
import os
import sys


class Cache:
    def __init__(self):
        self.values = {}

    def get(self, key, **_):
        return self.values.get(key)

    def set(self, key, value, **_):
        self.values[key] = value

    def incr(self, key, delta=1, **_):
        self.values[key] = int(self.values.get(key, 0)) + delta
        return self.values[key]

    def delete(self, key, **_):
        self.values.pop(key, None)


def filter_factory(_, **__):
    cache = Cache()

    def wrap(app):
        def serve(env, start_response):
            env["swift.cache"] = cache
            return app(env, start_response)
        return serve
    return wrap


COMMON = """[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
user = {user}
swift_dir = {dir}
devices = {dir}/devices
mount_check = false
disable_fallocate = true
log_level = ERROR
"""
BACKEND = """[pipeline:main]
pipeline = {kind}-server
[app:{kind}-server]
use = egg:swift#{kind}
"""
PROXY = """[pipeline:main]
pipeline = catch_errors gatekeeper cache s3api tempauth bulk slo proxy-server
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:gatekeeper]
use = egg:swift#gatekeeper
[filter:cache]
paste.filter_factory = openstack:filter_factory
[filter:s3api]
use = egg:swift#s3api
location = us-east-1
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = testsecret .admin
[filter:bulk]
use = egg:swift#bulk
[filter:slo]
use = egg:swift#slo
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
"""


def setup(folder, proxy, *ports):
    import pwd

    from swift.common.ring import RingBuilder
    common = {"dir": folder, "user": pwd.getpwuid(os.getuid()).pw_name}
    os.makedirs(os.path.join(folder, "devices", "d1"))
    with open(os.path.join(folder, "swift.conf"), "w") as f:
        f.write("[swift-hash]\nswift_hash_path_suffix = larder\n[storage-policy:0]\nname = one\ndefault = yes\n")
    with open(os.path.join(folder, "proxy.conf"), "w") as f:
        f.write(COMMON.format(port=proxy, **common) + PROXY)
    for kind, port in zip(("account", "container", "object"), ports):
        ring = RingBuilder(2, 1, 0)
        ring.add_dev({"id": 0, "region": 1, "zone": 1, "ip": "127.0.0.1", "port": int(port), "replication_ip": "127.0.0.1",
                      "replication_port": int(port), "device": "d1", "weight": 1.0, "meta": ""})
        ring.rebalance()
        ring.get_ring().save(os.path.join(folder, kind + ".ring.gz"))
        with open(os.path.join(folder, kind + ".conf"), "w") as f:
            f.write(COMMON.format(port=port, **common) + BACKEND.format(kind=kind))


def serve(folder, kind):
    from swift.common import utils
    utils.SWIFT_CONF_FILE = os.path.join(folder, "swift.conf")
    from swift.common.wsgi import run_wsgi
    return run_wsgi(os.path.join(folder, kind + ".conf"), kind + "-server")


if __name__ == "__main__":
    sys.exit({"setup": setup, "serve": serve}[sys.argv[1]](*sys.argv[2:]))
