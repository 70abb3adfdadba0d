#!/bin/sh
# Makes what the tests talk to in DIR: the SDKs at the versions that the tests
# were written for.
#
# Python: an environment with the SDKs, and with what the A2E SDK needs. That
# SDK is in no registry: A2E_SDK is a folder with its source, or whatever else
# pip installs from. The server of the SAMVAD tests needs uvicorn, which its SDK
# imports and does not require.
#
# TypeScript: DIR/node with the SAMVAD SDK, from the registry, or else built
# from its published source: the folder that SAMVAD_SDK names (a checkout of
# w3rc/samvad, or its packages/sdk-typescript), or a checkout made here. Without
# Node, npm or the source, this says so and the tests of that SDK are skipped.
#
# A2A: DIR/a2a with an environment for each version of the SDK for Python, which
# exclude each other, and with the SDK for JavaScript where Node and npm are
# installed.
#
# MCP: DIR/mcp with an environment for each version of the SDK for Python. DIR/mcp/node has, where Node and npm are
# installed, both SDKs for TypeScript, the inspector and the conformance suite, and the Node that these two need.
set -eu
if [ $# -lt 1 ] || [ $# -gt 2 ]; then
	echo "usage: [SAMVAD_SDK=FOLDER] internal/interop/setup.sh DIR [A2E_SDK]" >&2
	exit 2
fi
python=$(command -v python3 || command -v python) || {
	echo "internal/interop/setup.sh: no python3" >&2
	exit 1
}
"$python" -m venv "$1"
pip="$1/bin/python -m pip install --quiet --disable-pip-version-check"
$pip 'samvad==0.2.0' 'uvicorn>=0.30,<1' 'uagents==0.26.1' 'uagents-core==0.4.12' 'nats-py>=2.9,<3' 'cryptography>=42,<50' \
	'fastapi>=0.115,<1' 'requests>=2,<3' 'pyyaml>=6,<7'
"$1/bin/python" -c 'import samvad, uvicorn; print("samvad", samvad.__version__)'
if [ $# -eq 2 ]; then
	# Without what it names: the newest of each does, and the tests use no
	# more than is installed above.
	$pip --no-deps "$2"
	"$1/bin/python" -c 'from importlib.metadata import version; import a2e; print("a2e-python-sdk", version("a2e-python-sdk"))'
fi

dir=$(cd "$1" && pwd)
here=$(pwd)
sdk='@samvad-protocol/sdk'
sdk_version=0.7.0
repository=https://github.com/w3rc/samvad
commit=563c0b79ed06a1289e2c64e7bbb0da181b336eaa # of that version

missing() {
	echo "internal/interop/setup.sh: no TypeScript SDK, its tests will be skipped: $1"
}

# limited bounds a command that waits for the network, where the system can.
limited() {
	if command -v timeout >/dev/null; then timeout "${limit:-300}" "$@"; else "$@"; fi
}

npm_install() { limited npm install --no-audit --no-fund --loglevel=error "$@"; }

# build packs the source in the folder $1 as its authors publish it.
build() {
	rm -rf "$dir/node-build" && mkdir "$dir/node-build" &&
		cp -R "$1/package.json" "$1/tsconfig.json" "$1/src" "$dir/node-build" &&
		cd "$dir/node-build" &&
		npm pkg delete devDependencies.vitest && npm_install && npm run --silent build && npm pack --silent --ignore-scripts
}

checkout() {
	rm -rf "$dir/node-source" && git init --quiet "$dir/node-source" &&
		limited git -C "$dir/node-source" fetch --quiet --depth 1 "$repository" "$commit" &&
		git -C "$dir/node-source" checkout --quiet FETCH_HEAD
}

typescript() {
	command -v node >/dev/null && command -v npm >/dev/null || { missing "no node and npm"; return; }
	mkdir -p "$dir/node"
	cd "$dir/node"
	echo '{"private": true}' >package.json
	if ! npm_install "$sdk@$sdk_version" 2>"$dir/node-registry.log"; then
		echo "internal/interop/setup.sh: the npm registry has no $sdk $sdk_version; building it from its source"
		source=${SAMVAD_SDK:-}
		if [ -z "$source" ]; then
			checkout || { missing "$repository cannot be fetched; SAMVAD_SDK can name a checkout"; return; }
			source=$dir/node-source
		fi
		[ ! -d "$source/packages/sdk-typescript" ] || source=$source/packages/sdk-typescript
		(build "$source") || { missing "$source does not build"; return; }
		cd "$dir/node"
		npm_install "$dir"/node-build/samvad-protocol-sdk-*.tgz || { missing "the registry lacks what it needs"; return; }
	fi
	installed=$(node -p 'JSON.parse(require("fs").readFileSync(process.argv[1])).version' \
		"$dir/node/node_modules/$sdk/package.json")
	if [ "$installed" != "$sdk_version" ]; then
		rm -rf "$dir/node/node_modules"
		missing "it is version $installed, and the tests are written for $sdk_version"
		return
	fi
	echo "$sdk $installed, node $(node --version)"
	echo "PARLEY_NODE_SDK=$dir/node"
}
typescript
cd "$here"

mkdir -p "$dir/a2a"
for version in 1.3.0 0.3.26; do
	"$python" -m venv "$dir/a2a/python-$version"
	"$dir/a2a/python-$version/bin/python" -m pip install --quiet --disable-pip-version-check \
		"a2a-sdk[http-server]==$version" 'uvicorn>=0.30,<1'
	"$dir/a2a/python-$version/bin/python" -c 'from importlib.metadata import version; print("a2a-sdk", version("a2a-sdk"))'
done
# Frameworks of docs/a2a.md: DIR/a2a/langgraph and DIR/a2a/adk, where their packages can be had.
frameworks() {
	for framework in 'langgraph langgraph==1.2.24 a2a-sdk[http-server]==1.3.0' 'adk google-adk[a2a]==2.13.0'; do
		set -- $framework
		name=$1
		shift
		"$python" -m venv "$dir/a2a/$name"
		limited "$dir/a2a/$name/bin/python" -m pip install --quiet --disable-pip-version-check "$@" 'uvicorn>=0.30,<1' || {
			rm -rf "$dir/a2a/$name"
			echo "internal/interop/setup.sh: no $name, its test will be skipped"
		}
	done
}
limit=120 # the gate has to end in time
frameworks
limit=300
if command -v node >/dev/null && command -v npm >/dev/null; then
	mkdir -p "$dir/a2a/node"
	(cd "$dir/a2a/node" && echo '{"private": true}' >package.json && npm_install '@a2a-js/sdk@1.3.0' 'express@5')
else
	echo "internal/interop/setup.sh: no node and npm, the tests of the A2A SDK for JavaScript will be skipped"
fi

for version in 1.30.0 2.3.0; do
	"$python" -m venv "$dir/mcp/python-$version"
	limited "$dir/mcp/python-$version/bin/python" -m pip install --quiet --disable-pip-version-check "mcp==$version" || {
		rm -rf "$dir/mcp/python-$version"
		echo "internal/interop/setup.sh: no mcp $version for Python, its tests will be skipped"
	}
done
if command -v node >/dev/null && command -v npm >/dev/null; then
	mkdir -p "$dir/mcp/node"
	(cd "$dir/mcp/node" && echo '{"private": true}' >package.json && npm_install '@modelcontextprotocol/sdk@1.32.2' \
		'@modelcontextprotocol/client@2.4.0' '@modelcontextprotocol/server@2.4.0' '@modelcontextprotocol/node@2.1.2' \
		'zod@4.6.7' '@modelcontextprotocol/inspector@2.12.0' '@modelcontextprotocol/conformance@0.2.0-alpha.12' \
		'conformance-0.1@npm:@modelcontextprotocol/conformance@0.1.16' 'node@22.23.3') || {
		rm -rf "$dir/mcp/node"
		echo "internal/interop/setup.sh: no MCP packages for Node, their tests will be skipped"
	}
else
	echo "internal/interop/setup.sh: no node and npm, the tests of the MCP packages for Node will be skipped"
fi
echo "PARLEY_A2A_SDKS=$dir/a2a"
echo "PARLEY_MCP_SDKS=$dir/mcp"
echo "PARLEY_PYTHON=$1/bin/python"
