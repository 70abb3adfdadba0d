#!/bin/sh
# Runs the official compatibility kit of A2A against an agent of the hub, and writes
# docs/a2a-tck.md. The kit is in no registry: name a checkout of github.com/a2aproject/a2a-tck
# at the branch 1.0-dev, and one at 0.3.x if that version is to be checked as well. What the
# kits require is installed from the registry into a folder that is removed again.
set -eu
if [ $# -lt 1 ] || [ $# -gt 2 ]; then
	echo "usage: internal/interop/tck.sh CHECKOUT_1.0 [CHECKOUT_0.3]" >&2
	exit 2
fi
root=$(cd "$(dirname "$0")/../.." && pwd)
PARLEY_TCK=$(cd "$1" && pwd)
export PARLEY_TCK
if [ $# -eq 2 ]; then
	PARLEY_TCK_03=$(cd "$2" && pwd)
	export PARLEY_TCK_03
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
python3 -m venv "$work/python"
install() { "$work/python/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }
install 'pytest>=8' 'pytest-asyncio>=0.23' 'httpx>=0.27' 'grpcio>=1.60' 'protobuf>=4.25' 'googleapis-common-protos>=1.62' \
	'jsonschema>=4.21' 'pytest-html>=4.1' 'gherkin-official>=29' 'Jinja2>=3.1'
[ $# -lt 2 ] || install -r "$PARLEY_TCK_03/requirements.txt" python-dotenv pyOpenSSL
export PARLEY_TCK_PYTHON="$work/python/bin/python" PARLEY_TCK_REPORT="$root/docs/a2a-tck.md"
cd "$root"
go test ./internal/interop -run 'TestA2AKit' -count=1 -timeout 60m -v
