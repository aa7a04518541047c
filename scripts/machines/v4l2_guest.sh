#!/usr/bin/env bash
# Runs inside the virtual machine of scripts/machines/test-v4l2, as root: a camera is unplugged and comes
# back under another number while the service reads it. Says what it saw on the second serial port;
# ends with "all is as it should be", or with a line FAIL.
set -uo pipefail
exec >/dev/ttyS1 2>&1

drivers=/sys/bus/platform/drivers/vivid
began=$SECONDS
states=0
say() { echo "$((SECONDS - began)) s $*"; }
fail() {
    say "FAIL $*"
    cat /root/states
    ls -l /dev/video* /sys/class/video4linux/ 2>&1
    journalctl -u edge-agent -n 40 --no-pager -o cat
    exit 1
}
plug() {
    echo vivid.0 >"$drivers/bind"
    udevadm settle
}
unplug() {
    echo vivid.0 >"$drivers/unbind"
    udevadm settle
}
# Which device the camera is now.
node() {
    local each
    for each in /sys/class/video4linux/*; do
        [ "$(cat "$each/name")" = vivid-000-vid-cap ] && basename "$each"
    done
}
# await STATE WHAT [WORDS]: the source says this state, with these words, after what it said before.
await() {
    local patience=300 found
    until found=$(tail -n +$((states + 1)) /root/states | grep -n "\"state\":\"$1\".*${3:-}" | head -n 1) && [ -n "$found" ]; do
        patience=$((patience - 1))
        [ "$patience" -gt 0 ] || fail "$2: waited in vain for the state $1"
        sleep 1
    done
    states=$((states + ${found%%:*}))
    say "ok   $2: ${found#*:}"
}
# A result that is newer than this call, of the session that began it all.
session=
results() {
    local said
    said=$(mosquitto_sub -t edge/vm/result/cam -C 2 -W 300 | tail -n 1)
    [ -n "$said" ] || fail "no results"
    local now=${said#*\"session\":\"}
    now=${now%%\"*}
    session=${session:-$now}
    [ "$session" = "$now" ] || fail "the agent was restarted"
}

modprobe vivid n_devs=1 node_types=0x1 || fail "no vivid"
udevadm settle
[ "$(node)" = video0 ] || fail "the camera is $(node), expected video0"
cat >/etc/edge-agent/config.toml <<'END'
device_id = "vm"
engine = "onnxruntime"

[[pipelines]]
name = "cam"
source = "v4l2:/dev/video0"
model = "parts-inspection"
rate = 2

[[pipelines]]
name = "beside"
source = "v4l2:/dev/video0"
model = "parts-inspection"
rate = 2
masks = [[[0.0, 0.0], [1.0, 0.0], [1.0, 0.5]]]
END
chgrp edge-agent /etc/edge-agent/config.toml
chmod 0640 /etc/edge-agent/config.toml
systemctl start mosquitto || fail "no mosquitto"
mosquitto_sub -t edge/vm/source/cam >/root/states &
systemctl start edge-agent || fail "the service does not start"
await running "the hardened service ($(systemctl show edge-agent --value -p User), DevicePolicy=$(systemctl show edge-agent --value -p DevicePolicy)) reads /dev/video0"
results

# Another pipeline on the same device, which takes one reader only.
capture=$(mosquitto_sub -t edge/vm/result/cam -C 1 -W 300 | grep -o '"capture":{"source":"[0-9a-f]*"')
[ -n "$capture" ] || fail "results of one device do not say so"
mosquitto_sub -t edge/vm/result/beside -C 1 -W 300 | grep -F "$capture" >/root/beside || fail "the second pipeline has no results"
say "ok   two pipelines on one device: $(cut -c -200 /root/beside)"

# Somebody holds the old device open while the camera comes back: its number is not free. Opened
# here, not by whoever is started behind: that may come too late.
exec 9</dev/video0
unplug
await lost "unplugged during capture"
plug
[ "$(node)" != video0 ] || fail "the number did not change"
await running "plugged in again as $(node)"
results
journalctl -u edge-agent --no-pager -o cat | grep "is now /dev/$(node)" || fail "the journal does not say where it is"
exec 9<&-

# And back under the number of the settings.
unplug
await lost "unplugged"
plug
[ "$(node)" = video0 ] || fail "the camera is $(node), expected video0"
await running "plugged in again as video0"
results
systemctl stop edge-agent
[ "$(systemctl show edge-agent --value -p NRestarts)" = 0 ] || fail "the service was restarted"
say "ok   one session from first to last, $(wc -l </root/states) states said"

# What it offers, and what it is asked for.
modes() {
    cat >/root/modes.toml <<END
device_id = "vm"
engine = "onnxruntime"
state_dir = "/root/state"

[[pipelines]]
name = "cam"
source = "v4l2:/dev/video0?$1"
model = "parts-inspection"
END
    /opt/edge-agent/current/bin/edge-agent check --config /root/modes.toml 2>&1 | grep 'pipeline cam source'
}
said=$(modes 'size=640x360&format=yuyv')
grep -q 'offers .*YUYV.*640x360' <<<"$said" || fail "what is offered is not said: $said"
grep -q ', 640x360$' <<<"$said" || fail "the size is not set: $said"
say "ok   $said"
said=$(modes 'size=641x123')
grep -q 'FAIL .*does not give 641x123, but .*it offers ' <<<"$said" || fail "a wrong size is not said: $said"
say "ok   $said"

# A sound card, by the same service: what is played at one end of a cable is heard at the other.
modprobe snd-aloop || fail "no snd-aloop"
udevadm settle
speaker-test -D plughw:Loopback,0 -c 1 -r 8000 -t sine >/dev/null 2>&1 &
cat >/etc/edge-agent/config.toml <<'END'
device_id = "vm"

[[pipelines]]
name = "mic"
source = "alsa:plughw:Loopback,1?rate=8000&channels=1"
model = "readings"

[pipelines.input]
window = 8000
hop = 8000
rate_hz = 8000
stats = { of = ["rms"] }
END
systemctl start edge-agent || fail "the service does not start with a sound card"
said=$(mosquitto_sub -t edge/vm/result/mic -C 2 -W 300 | tail -n 1)
grep -q '"rms":0\.[0-9]*[1-9]' <<<"$said" || fail "nothing is heard of the sound card: $said"
say "ok   a sound card: $(grep -o '"values".*' <<<"$said")"
systemctl stop edge-agent
echo "all is as it should be"
