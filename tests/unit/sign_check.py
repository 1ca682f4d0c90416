#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Signs the requests of a file again with botocore and compares: the second implementation for test_s3_sign.c.

A line is hexadecimal fields separated by blanks: method, host, raw path, raw query ("name=value" joined by NUL bytes), headers
("name: value" joined by NUL bytes), payload hash, region, id, secret, token, amz date, path as encoded, query as encoded, Authorization.
Prints the number compared; exit 77: no botocore; 1: a difference.
"""
import sys

try:
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials
except ImportError:
    print("python3-botocore is not installed")
    sys.exit(77)
from urllib.parse import quote


class Auth(S3SigV4Auth):
    """With the payload's hash given."""

    def __init__(self, credentials, region, payload):
        super().__init__(credentials, "s3", region)
        self._given = payload

    def payload(self, request):
        return self._given


def sign(f):
    method, host, path, query, headers, payload, region, key, secret, token, date = f[:11]
    pairs = [q.split("=", 1) for q in query.split("\0")] if query else []
    encoded_path = quote(path, safe="/~")
    encoded_query = "&".join("%s=%s" % p for p in sorted((quote(n, safe="-_.~"), quote(v, safe="-_.~")) for n, v in pairs))
    # The query goes by params: a URL's own is taken as encoded already.
    request = AWSRequest(method=method, url="http://%s%s" % (host, encoded_path), params=dict(pairs))
    request.context["timestamp"] = date
    for line in headers.split("\0") if headers else []:
        name, value = line.split(":", 1)
        request.headers.add_header(name, value.strip())
    auth = Auth(Credentials(key, secret, token or None), region, payload)
    auth._modify_request_before_signing(request)
    del request.headers["X-Amz-Date"]  # assigning would add a second one
    request.headers["X-Amz-Date"] = date
    text = auth.string_to_sign(request, auth.canonical_request(request))
    auth._inject_signature_to_request(request, auth.signature(text, request))
    return encoded_path, encoded_query, request.headers["Authorization"]


def main():
    number = 0
    with open(sys.argv[1], encoding="ascii") as lines:
        for number, line in enumerate(lines, 1):
            fields = [bytes.fromhex(x[1:]).decode("utf-8") for x in line.split(" ")]
            for mine, theirs in zip(fields[11:], sign(fields)):
                if mine != theirs:
                    print("line %d, %r:\n  larder   %s\n  botocore %s" % (number, fields[:7], mine, theirs))
                    return 1
    print(number)
    return 0


if __name__ == "__main__":
    sys.exit(main())
