#!/usr/bin/env bash
# Installs the package, static and shared, and builds the consumer of tests/package against each with CMake and
# pkg-config. The static library is that of build/ci, which must be built; the shared one is linked from its objects.
set -euo pipefail
cd "$(dirname "$0")/.."
work=build/package
for shared in OFF ON; do
  prefix=$PWD/$work/prefix-$shared
  if [ $shared = OFF ]; then
    cmake --install build/ci --prefix "$prefix" --component Unspecified >/dev/null
  else
    cmake -S . -B "$work/library" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON \
      -DSCALEDMM_OBJECTS_OF="$PWD/build/ci" -DSCALEDMM_TESTS=OFF -DSCALEDMM_EXAMPLES=OFF -DSCALEDMM_CLI=OFF \
      -DSCALEDMM_CUDA=OFF -DCMAKE_INSTALL_PREFIX="$prefix" -DCMAKE_INSTALL_LIBDIR=lib >/dev/null
    cmake --build "$work/library" --target scaledmm >/dev/null
    cmake --install "$work/library" >/dev/null
  fi
  cmake -S tests/package -B "$work/consumer-$shared" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" >/dev/null
  cmake --build "$work/consumer-$shared" >/dev/null
  "$work/consumer-$shared/consumer"
  export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
  flags=--libs
  [ $shared = ON ] || flags="--libs --static"
  # shellcheck disable=SC2046,SC2086
  g++ -std=c++20 tests/package/consumer.cpp $(pkg-config --cflags $flags scaledmm) -Wl,-rpath,"$prefix/lib" -o "$work/pkgconfig-$shared"
  "$work/pkgconfig-$shared"
done
sed 's/scaledmm 0.1 CONFIG/scaledmm 7.0 CONFIG/' tests/package/CMakeLists.txt >"$work/CMakeLists.txt"
cp tests/package/consumer.cpp "$work/"
if cmake -S "$work" -B "$work/wrong-version" -DCMAKE_PREFIX_PATH="$PWD/$work/prefix-OFF" >/dev/null 2>&1; then
  echo "a program that asks for version 7 was given this one" >&2
  exit 1
fi
echo "static and shared, CMake and pkg-config: the consumer builds and runs; a wrong version is refused"
