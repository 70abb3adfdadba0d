#!/bin/sh
# Gets what the tests of the console in a browser need: Chromium from Debian's packages, where none is installed and
# this is root, and DIR/package/axe.min.js of axe-core (MPL-2.0, used by tests only) from the npm registry. What cannot
# be had is said; its tests are skipped.
set -eu
if [ $# -ne 1 ]; then
	echo "usage: internal/browser/setup.sh DIR" >&2
	exit 2
fi
version=4.14.1

limited() {
	if command -v timeout >/dev/null; then timeout 300 "$@"; else "$@"; fi
}

installed() { command -v "${PARLEY_CHROMIUM:-chromium}" || command -v chromium-browser || command -v google-chrome; }

if ! installed >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
	limited apt-get update -qq || true
	DEBIAN_FRONTEND=noninteractive limited apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core || true
fi
installed || echo "internal/browser/setup.sh: no browser, the tests of the console in one will be skipped"

mkdir -p "$1"
cd "$1"
if [ ! -f package/axe.min.js ] || ! grep -q "\"version\": *\"$version\"" package/package.json; then
	rm -rf package
	if command -v npm >/dev/null && archive=$(limited npm pack --silent "axe-core@$version"); then
		tar -xzf "$archive" package/axe.min.js package/package.json package/LICENSE
		rm -f "$archive"
	else
		echo "internal/browser/setup.sh: no axe-core, its tests will be skipped"
		exit 0
	fi
fi
echo "axe-core $version"
