"""What the server does as one step.

Of each key there is one hash: ``n`` the newest version, ``r`` its record, ``o`` the older versions
(the newest of them first; of each its length and the first letter of its record stand before it)
and ``v`` with an older version its record. Each lane (see :mod:`pparallel_redis.lane`) has a
string: the number of its last change and what came of that.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

STORED, REFUSED, FORGOTTEN, UNSTAGED = 1, 0, -1, -2
LANE_LIFE = 3600  #: seconds for which the server knows a lane that changes nothing
LONGER = 2000  #: milliseconds for which pieces outlive the record that leads to them


class Script(NamedTuple):
    """A script, and the name under which the server keeps it."""

    text: bytes
    sha: bytes


def _script(text: str) -> Script:
    source = text.encode()
    return Script(source, hashlib.sha1(source, usedforsecurity=False).hexdigest().encode())


# KEYS: the key's hash, the lane. ARGV[1..2]: the change's number in its lane, and whether it may
# have come before. A change that came before is answered as it was then.
_ONCE = """
local hash, lane = KEYS[1], KEYS[2]
local number, doubtful = tonumber(ARGV[1]), ARGV[2] == '1'
local last = redis.call('GET', lane)
if last then
  local before, result = string.match(last, '^(%d+) (%d)$')
  before = tonumber(before)
  if before == number then
    redis.call('EXPIRE', lane, LANE_LIFE)  -- a write, which WAIT waits for
    return tonumber(result)
  elseif before > number then
    return FORGOTTEN
  end
elseif doubtful then
  return FORGOTTEN
end
local function remember(result)
  redis.call('SET', lane, string.format('%d %d', number, result), 'EX', LANE_LIFE)
  return result
end
local function pieces_of(record, stem)
  local names = {}
  if record and string.sub(record, 1, 1) == 'x' then
    local token, count = string.sub(record, 2, 34), tonumber(string.sub(record, 35, 38), 16)
    for i = 1, count do names[i] = stem .. token .. '.' .. (i - 1) end
  end
  return names
end
local function forget(record, stem)
  for _, name in ipairs(pieces_of(record, stem)) do redis.call('UNLINK', name) end
end
"""

# ARGV[3..]: version, prev_version ('': none), depth, milliseconds to live ('': for ever), record,
# what the names of pieces begin with, channel.
_PUSH = """
local version, prev, depth, life = ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6]
local record, stem, channel = ARGV[7], ARGV[8], ARGV[9]
local newest, old, packed = unpack(redis.call('HMGET', hash, 'n', 'r', 'o'))
if newest and newest ~= prev then
  forget(record, stem)
  if doubtful then return remember(REFUSED) end
  return REFUSED
end
local staged = pieces_of(record, stem)
for _, name in ipairs(staged) do
  if redis.call('EXISTS', name) == 0 then return UNSTAGED end
end
local order, changes, gone = {}, {'n', version, 'r', record}, {}
if packed then
  local at = 1
  while at <= #packed do
    order[#order + 1], at = struct.unpack('<I4c0', packed, at)
  end
end
local function leave(older)
  local field = 'v' .. string.sub(older, 2)
  gone[#gone + 1] = redis.call('HGET', hash, field)
  redis.call('HDEL', hash, field)
end
local replaced
if newest then
  if newest == version or depth == 1 then
    replaced = old
  else
    table.insert(order, 1, string.sub(old, 1, 1) .. newest)
    changes[5], changes[6] = 'v' .. newest, old
  end
end
-- What may be refused for want of memory comes first, before anything is deleted.
redis.call('HSET', hash, unpack(changes))
for i = #order, 1, -1 do
  if string.sub(order[i], 2) == version then leave(table.remove(order, i)) end
end
while #order > depth - 1 do leave(table.remove(order)) end
if packed or #order > 0 then
  local parts = {}
  for i, each in ipairs(order) do parts[i] = struct.pack('<I4c0', #each, each) end
  redis.call('HSET', hash, 'o', table.concat(parts))
end
if replaced then gone[#gone + 1] = replaced end
for _, each in ipairs(gone) do forget(each, stem) end
local ends = redis.call('PTTL', hash) >= 0
local function live(name, longer)
  if life == '' then redis.call('PERSIST', name)
  else redis.call('PEXPIRE', name, string.format('%d', life + longer)) end
end
-- Whoever finds a record is to find its pieces, too.
for _, name in ipairs(staged) do live(name, LONGER) end
if life ~= '' or ends then
  live(hash, 0)
  for _, each in ipairs(order) do
    if string.sub(each, 1, 1) == 'x' then
      local held = redis.call('HGET', hash, 'v' .. string.sub(each, 2))
      for _, name in ipairs(pieces_of(held, stem)) do live(name, LONGER) end
    end
  end
end
if newest ~= version then redis.call('PUBLISH', channel, '') end
return remember(STORED)
"""

# ARGV[3]: what the names of pieces begin with.
_DELETE = """
if redis.call('EXISTS', hash) == 0 then
  if doubtful then return remember(REFUSED) end
  return REFUSED
end
for i, each in ipairs(redis.call('HGETALL', hash)) do
  if i % 2 == 0 then forget(each, ARGV[3]) end
end
redis.call('UNLINK', hash)
return remember(STORED)
"""

_NUMBERS = {
    "LANE_LIFE": LANE_LIFE,
    "LONGER": LONGER,
    "STORED": STORED,
    "REFUSED": REFUSED,
    "FORGOTTEN": FORGOTTEN,
    "UNSTAGED": UNSTAGED,
}
_DEFINED = "".join(f"local {name} = {value}\n" for name, value in _NUMBERS.items())

PUSH = _script(_DEFINED + _ONCE + _PUSH)
DELETE = _script(_DEFINED + _ONCE + _DELETE)
