#!/usr/bin/env bash
# The libraries of a Debian 12 for arm64 in build/arm64-sysroot, for cmake/arm64.cmake: unpacked, not installed, so that the
# machine's own dpkg knows nothing of them. Does nothing when they are there. For dpkg-shlibdeps there is a dpkg folder that says
# which package has which file (by its place here) and what depends on its libraries. Downloads about 40 MB.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD/build/arm64-sysroot
packages=(
    libc6-dev libstdc++-12-dev linux-libc-dev                       # the compiler's
    libfmt-dev libcli11-dev nlohmann-json3-dev libpcap-dev          # as in ./dev
    systemtap-sdt-dev libbpf-dev libibverbs-dev librdmacm-dev
    libgtest-dev libgmock-dev libbenchmark-dev
)

if [[ ${1:-} == --register ]]; then # of mmdebstrap, below: the folder where the packages are, unpacked and as files
    info=$2/var/lib/dpkg/info
    mkdir -p "$info"
    echo 1 >"$info/format" # names with their architecture
    for deb in "$2"/var/cache/apt/archives/*.deb; do
        name=$(dpkg-deb -f "$deb" Package)
        [[ $(dpkg-deb -f "$deb" Multi-Arch) != same ]] || name=$name:arm64
        { dpkg-deb -f "$deb"; echo "Status: install ok installed"; echo; } >>"$2/var/lib/dpkg/status"
        dpkg-deb --fsys-tarfile "$deb" | tar -t | sed "s|^\.|$root|; s|/\$||" >"$info/$name.list"
        dpkg-deb --control "$deb" "$2/control"
        for file in shlibs symbols; do
            [[ ! -e $2/control/$file ]] || mv "$2/control/$file" "$info/$name.$file"
        done
        rm -r "$2/control"
    done
    exit
fi

made_of=$(sha256sum "$0")
[[ ! -e $root/made-of || $(<"$root/made-of") != "$made_of" ]] || exit 0
rm -rf "$root"
mkdir -p "$root"
mmdebstrap --quiet --mode=root --variant=extract --arch=arm64 --include="$(IFS=, && echo "${packages[*]}")" \
    --extract-hook="ci/arm64_sysroot.sh --register \"\$1\"" bookworm "$root" http://deb.debian.org/debian
# A link to /lib would be to the library of this machine.
find "$root/usr/lib" "$root/lib" -type l -lname '/*' -print0 | while IFS= read -r -d '' link; do
    ln -srf "$root$(readlink "$link")" "$link"
done
echo "$made_of" >"$root/made-of"
