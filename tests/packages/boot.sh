#!/bin/sh
# Runs systemd as PID 1 of a clean root: called by machine.py in new mount, PID, network, UTS, IPC and cgroup namespaces.
# Changes of the root are in memory (overlayfs), and end with the namespaces.
set -e
lower=$1 shared=$2
root=/mnt
mount --make-rprivate /
mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay overlay -o "lowerdir=$lower,upperdir=/mnt/upper,workdir=/mnt/work" /mnt/root
root=/mnt/root
mkdir -p $root/packages $root/host
# There is no network, for which this service would wait two minutes.
ln -sf /dev/null $root/etc/systemd/system/systemd-networkd-wait-online.service
mount --bind "$shared" $root/packages
mount -t proc proc $root/proc
mount -t sysfs -o ro sysfs $root/sys
# Only this machine's part of the hierarchy: the cgroup namespace begins there.
mount -t cgroup2 cgroup2 $root/sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs $root/run
mount -t tmpfs -o mode=1777 tmpfs $root/tmp
mount -t tmpfs -o mode=755 tmpfs $root/dev
for name in null zero full random urandom tty; do
    touch $root/dev/$name
    mount --bind /dev/$name $root/dev/$name
done
mkdir $root/dev/shm $root/dev/pts
mount -t tmpfs -o mode=1777 tmpfs $root/dev/shm
mount -t devpts -o newinstance,ptmxmode=666 devpts $root/dev/pts
ln -s pts/ptmx $root/dev/ptmx
cd $root
pivot_root . host
umount -l /host
hostname machine
exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin /sbin/init
