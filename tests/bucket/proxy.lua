-- SPDX-License-Identifier: Apache-2.0
-- proxy.lua - latency and faults between a client and an object server, told over HTTP while nginx runs.
--
--   curl -X PUT --data-binary $'latmin=20\nlatmax=50\nflip=0.02' $S3_PROXY/__larder/faults   replaces all settings
--   curl $S3_PROXY/__larder/stats          {"requests": n, "bytes": n, "GET": n, ..., "flip": n, ...} since the last PUT
--   curl $S3_PROXY/__larder/log            a line a request: start end status bytes faults METHOD URI RANGE; times in ms
--
-- Settings that are no faults:
--   latmin latmax     ms before each answer, uniformly between them; tail: probability of 20 times as long
--   rate              bytes/s of each answer
--   match             Lua pattern over "METHOD URI RANGE"; only such requests meet faults
--   limit             so many faults in all; skip: so many matching requests pass before the first
--   seed              of the dice
--   region            the only region whose signatures are taken; the answer to others is AWS's
--   expired           access key whose credentials have expired
-- Faults, each a probability for a request; an answer has one of them at most:
--   slowdown          503 SlowDown with Retry-After: 1 (retryafter=s); toomany: 429; err500; err502; bare503: without Retry-After
--   close             RST before an answer; hang: no answer at all; reset: the connection breaks within the body
--   trunc             the body ends early; stall: the same, but the connection stays open
--   flip              one bit of a 200's or 206's body
--   full200           206 turned into 200; norange: the whole object with 200; wrongrange: another range than was asked for
--   skew              403 RequestTimeTooSkewed
--   badxml            200 with an error document, as CompleteMultipartUpload may answer; only POST meets it
local M = {}
local F, counts, log, used, seen = {}, {}, {}, 0, 0
local now = function() ngx.update_time() return ngx.now() * 1000 end
local start = ngx.now() * 1000

local function count(what, n) counts[what] = (counts[what] or 0) + (n or 1) end

local function hit(kind)
    local p = F[kind]
    if not p or math.random() >= p or (F.limit and used >= F.limit) then return false end
    used = used + 1
    count(kind)
    return true
end

local function answer(status, code, message, headers, more)
    local body = "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>" .. code .. "</Code><Message>" .. message
        .. "</Message>" .. (more or "") .. "<RequestId>proxy</RequestId></Error>"
    ngx.status = status
    ngx.header["Content-Type"] = "application/xml"
    ngx.header["Content-Length"] = #body
    for k, v in pairs(headers or {}) do ngx.header[k] = v end
    if ngx.req.get_method() ~= "HEAD" then ngx.print(body) end
    ngx.exit(status)
end

-- Faults that answer by themselves; "slowdown" and so on, or nil.
local answers = {
    {"slowdown", function() answer(503, "SlowDown", "Please reduce your request rate.", {["Retry-After"] = F.retryafter or 1}) end},
    {"bare503", function() answer(503, "ServiceUnavailable", "Reduce your request rate.") end},
    {"toomany", function() answer(429, "TooManyRequests", "Too many requests.", {["Retry-After"] = F.retryafter or 1}) end},
    {"err500", function() answer(500, "InternalError", "We encountered an internal error. Please try again.") end},
    {"err502", function() answer(502, "BadGateway", "Bad gateway.") end},
    {"skew", function() answer(403, "RequestTimeTooSkewed", "The difference between the request time and the current time is too large.") end},
    {"close", function() ngx.exit(444) end},
    {"hang", function() ngx.sleep(3600) ngx.exit(444) end},
}

-- Refusals by what the signature says; none when it is in order.
local function refusal()
    local auth = ngx.var.http_authorization or ""
    local key, region = auth:match("Credential=([^/]*)/%d+/([^/]*)/")
    if key and key == F.expired then
        count("expired")
        answer(400, "ExpiredToken", "The provided token has expired.")
    elseif region and F.region and region ~= F.region then
        count("region")
        answer(400, "AuthorizationHeaderMalformed",
            "The authorization header is malformed; the region '" .. region .. "' is wrong; expecting '" .. F.region .. "'",
            {["x-amz-bucket-region"] = F.region}, "<Region>" .. F.region .. "</Region>")
    end
end

-- Moves the range of a GET, so that the server sends others of as many bytes.
local function move_range()
    local first, last = (ngx.var.http_range or ""):match("^bytes=(%d+)%-(%d+)$")
    if not first then return false end
    first, last = tonumber(first), tonumber(last)
    local by = first > 0 and -1 or 1
    ngx.req.set_header("Range", string.format("bytes=%.0f-%.0f", first + by, last + by))
    return true
end

function M.access()
    local method, range = ngx.req.get_method(), ngx.var.http_range or "-"
    local what = method .. " " .. ngx.var.request_uri .. " " .. range
    ngx.var.fault = string.format("%.3f", now()) -- when it came; a fault's name follows
    count("requests")
    count(method)
    if F.latmax and F.latmax > 0 then
        local ms = (F.latmin or 0) + math.random() * (F.latmax - (F.latmin or 0))
        if F.tail and math.random() < F.tail then ms = ms * 20 end
        ngx.sleep(ms / 1000)
    end
    if F.rate then ngx.var.limit_rate = F.rate end
    refusal()
    if F.match and not what:find(F.match) then return end
    seen = seen + 1
    if F.skip and seen <= F.skip then return end
    for _, a in ipairs(answers) do
        if hit(a[1]) then
            ngx.var.fault = ngx.var.fault .. " " .. a[1]
            return a[2]()
        end
    end
    if method == "POST" and hit("badxml") then return answer(200, "InternalError", "We encountered an internal error. Please try again.") end
    if method ~= "GET" then return end
    for _, kind in ipairs({"trunc", "reset", "stall", "flip", "full200", "norange", "wrongrange"}) do
        if hit(kind) then
            ngx.var.fault = ngx.var.fault .. " " .. kind
            if kind == "norange" then ngx.req.clear_header("Range") end
            if kind == "wrongrange" and not move_range() then return end
            if kind == "trunc" or kind == "reset" then return ngx.exec("@short") end
            return
        end
    end
end

local function fault() return ngx.var.fault:match(" (%w+)$") end

function M.header()
    local kind = fault()
    if not kind or (ngx.status ~= 200 and ngx.status ~= 206) then return end
    if kind == "full200" and ngx.status == 206 then
        ngx.status = 200
        ngx.header["Content-Range"] = nil
    elseif kind == "trunc" or kind == "reset" or kind == "stall" or kind == "flip" then
        local length = tonumber(ngx.header["Content-Length"] or "") or 0
        ngx.ctx.kind, ngx.ctx.left = kind, length > 0 and math.random(0, length - 1) or 0
    end
end

-- ctx.left: bytes until the place where it happens.
function M.body()
    local kind, left, chunk = ngx.ctx.kind, ngx.ctx.left, ngx.arg[1]
    if not kind or kind == "done" then return end
    if kind == "cut" then
        ngx.arg[1] = ""
        if ngx.ctx.reset then return ngx.ERROR end
        return
    end
    if #chunk <= left then
        ngx.ctx.left = left - #chunk
        return
    end
    if kind == "flip" then
        ngx.arg[1] = chunk:sub(1, left) .. string.char(bit.bxor(chunk:byte(left + 1), 2 ^ math.random(0, 7))) .. chunk:sub(left + 2)
        ngx.ctx.kind = "done"
    else
        ngx.arg[1] = chunk:sub(1, left)
        ngx.ctx.kind, ngx.ctx.reset = "cut", kind == "reset"
    end
end

function M.log()
    local came, kind = ngx.var.fault:match("^([%d.]+) ?(%w*)$")
    count("bytes", tonumber(ngx.var.body_bytes_sent) or 0)
    if #log < 400000 then
        log[#log + 1] = string.format("%.1f %.1f %d %s %s %s %s %s", (tonumber(came) or now()) - start, now() - start, ngx.status,
            ngx.var.body_bytes_sent, kind and kind ~= "" and kind or "-", ngx.req.get_method(), ngx.var.request_uri,
            ngx.var.http_range or "-")
    end
end

function M.control()
    if ngx.req.get_method() == "PUT" then
        ngx.req.read_body()
        F, counts, log, used, seen = {}, {}, {}, 0, 0
        for line in (ngx.req.get_body_data() or ""):gmatch("[^\n]+") do
            local k, v = line:match("^(%w+)=(.*)$")
            if k then F[k] = (k == "match" or k == "region" or k == "expired") and v or tonumber(v) end
        end
        math.randomseed(F.seed or 1)
        start = now()
        return ngx.exit(204)
    elseif ngx.var.uri == "/__larder/log" then
        ngx.print(table.concat(log, "\n"), #log > 0 and "\n" or "")
    else
        local members = {}
        for k, v in pairs(counts) do members[#members + 1] = string.format("\"%s\": %.0f", k, v) end
        ngx.say("{", table.concat(members, ", "), "}")
    end
end

return M
