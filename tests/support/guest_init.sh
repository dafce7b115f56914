#!/busybox sh
# The first process of the guest that guest.py boots. Its root is the machine's own by 9p, under a layer in memory; the job is a
# script of that root ($vma_job, from the kernel's command line), whose output and exit status go out by two virtio ports.
/busybox mkdir -p /bin /proc /sys /dev /lower /layer /root
/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
while read -r module; do
    insmod "/modules/$module"
done </modules/order
release=$(uname -r)
set -e
mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=512000,cache=loose root /lower
mount -t tmpfs -o size=75% tmpfs /layer
mkdir /layer/upper /layer/work
mount -t overlay -o "lowerdir=/lower,upperdir=/layer/upper,workdir=/layer/work" overlay /root
mkdir -p /root/lib/modules
ln -sfn "$vma_modules" "/root/lib/modules/$release"
for folder in proc sys dev; do
    mount --move "/$folder" "/root/$folder"
done
cd /root
mkdir -p dev/pts dev/shm
mount -t devpts -o mode=620,ptmxmode=666 devpts dev/pts
mount -t tmpfs -o mode=1777 tmpfs dev/shm
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs var/tmp
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t bpf bpf sys/fs/bpf
mount -t tracefs tracefs sys/kernel/tracing
mkdir -p run/lock
ln -s /proc/self/fd dev/fd
for number in 0:stdin 1:stdout 2:stderr; do
    ln -s "/proc/self/fd/${number%:*}" "dev/${number#*:}"
done
ip link set lo up
echo guest >proc/sys/kernel/hostname
exec switch_root /root /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root \
    /bin/sh -c '
        modprobe tun
        set -- "$1" /dev/vport*p1 /dev/vport*p2
        /bin/sh "$1" </dev/null >"$2" 2>&1
        echo $? >"$3"
        echo b >/proc/sysrq-trigger' sh "$vma_job"
