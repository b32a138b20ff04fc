// Draws what the server tells. All texts get into the page as text nodes.

const POLL = 2000, SOON = 100, PATIENCE = 30000, ASK_AGAIN = 10000;
const MOST_SEEN = 300, MOST_AT_ONCE = 40, MOST_LINES = 200;
const A_PAGE = innerWidth < 680 ? 5 : 20;
const USUAL = new Set(["prepared", "allocated", "preparing", "ready"]), BROKEN = new Set(["orphan", "lost"]);
const STATES = {
  look: "needs a look", free: "has room", unavailable: "nothing is given out",
  prepared: "made, in use", allocated: "given to a claim, not made yet", preparing: "being made",
  ready: "made, free", reclaiming: "its claim is gone, not removed yet",
  orphan: "left by a failure, not removed yet", foreign: "made by another program, left alone",
  lost: "a claim's, and gone from the GPU",
};

const $ = (id) => document.getElementById(id);
const byName = new Intl.Collator("en", { numeric: true }).compare;
const number = new Intl.NumberFormat("en").format;
const counted = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
const size = (mib) => (mib < 10240 * 1024 ? `${number(Math.floor(mib / 1024))}Gi` : `${number(Math.round(mib / 1024 / 102.4) / 10)}Ti`);

function make(tag, properties, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((each) => each !== ""));
  return made;
}

function meter(part, whole, kind = "") {
  const made = make("span", { class: `meter ${kind}`, "aria-hidden": "true" }, make("i"));
  made.firstChild.style.width = `${whole ? Math.max(part ? 1 : 0, (100 * part) / whole) : 0}%`;
  return made;
}

function ago(at) {
  const seconds = Math.max(0, Math.round((Date.now() - new Date(at)) / 1000));
  if (Number.isNaN(seconds)) return "";
  if (seconds < 90) return `${seconds} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 129600 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}

const age = (at) => make("time", { datetime: at, title: new Date(at).toString() }, ago(at));

// --- what is known ---------------------------------------------------------------------------

let token = "", version = "", lostAt = null, latest = {};
const nodes = new Map();
let waiting = { items: [], more: {}, reasons: [] }, told = { items: [], more: {} };
let seen = [];
let chosen = null, why = null, nextAsk = 0, places = [], place = -1, reason = "", here = null;
const words = new WeakMap();

function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    token = given;
    sessionStorage.setItem("token", given);
    history.replaceState(null, "", location.pathname);
  }
}

async function ask(path, query) {
  const answer = await fetch(`${path}?${new URLSearchParams(query)}`, {
    headers: { Authorization: `Bearer ${token}` }, signal: AbortSignal.timeout(PATIENCE),
    cache: "no-store", credentials: "omit", redirect: "error",
  });
  if (!answer.ok) throw Object.assign(new Error((await answer.text()).trim()), { status: answer.status });
  return answer.json();
}

async function poll() {
  let pause = POLL;
  try {
    const found = await ask("data", { since: version });
    take(found);
    if (found.backlog) pause = SOON;
    lostAt = null;
  } catch (error) {
    lostAt ??= new Date();
    latest = { ...latest, error: error.status ? error.message : "no answer" };
  }
  showStatus();
  setTimeout(poll, pause);
}

function take(found) {
  const before = new Map(nodes);
  if (found.full) nodes.clear();
  for (const node of found.nodes) nodes.set(node.name, node);
  if (found.names) {
    const left = new Set(found.names);
    for (const name of [...nodes.keys()]) if (!left.has(name)) nodes.delete(name);
  }
  if (version) remember(before, found);
  const changed = found.full || found.nodes.length > 0 || found.names;
  if (found.waiting) waiting = found.waiting;
  if (found.told) told = found.told;
  version = found.version;
  latest = found;
  if (changed) { showChoices(); showRooms(); showNodes(); }
  if (changed || found.waiting) showFigures();
  if (changed || found.waiting) showWaiting();
  if (changed || found.told) showLine();
  showNote();
  for (const each of document.querySelectorAll("time")) if (each.textContent !== ago(each.dateTime)) each.textContent = ago(each.dateTime);
  if (chosen && (changed || found.waiting) && Date.now() > nextAsk) askWhy();
}

// --- the time line: what was told, and what was seen to change --------------------------------

function slotsOf(node) {
  const found = new Map();
  for (const gpu of node?.gpus ?? []) {
    for (const slot of gpu.slots) {
      for (const owner of slot.owners.length ? slot.owners : [["", slot.state, ""]]) {
        found.set(`${gpu.name} ${slot.at} ${slot.profile} ${owner[0]}/${owner[2] || owner[1]}`, { gpu, slot, owner });
      }
    }
  }
  return found;
}

function remember(before, found) {
  const at = new Date().toISOString(), made = [], removed = [], other = [];
  const names = found.full || found.names ? new Set([...before.keys(), ...nodes.keys()]) : found.nodes.map((n) => n.name);
  for (const name of names) {
    // A node that was not known is loaded, and nothing happened on it.
    if (!before.has(name) || before.get(name) === nodes.get(name)) continue;
    const old = slotsOf(before.get(name)), now = slotsOf(nodes.get(name));
    for (const [key, each] of now) {
      if (!old.has(key)) made.push({ ...each, node: name });
      else if (old.get(key).slot.state !== each.slot.state) other.push({ ...each, node: name, what: `now ${each.slot.state}` });
    }
    for (const [key, each] of old) if (!now.has(key)) removed.push({ ...each, node: name });
  }
  for (const each of made) {
    const from = each.owner[2] && removed.find((r) => r.owner[0] === each.owner[0] && r.owner[2] === each.owner[2]);
    if (from) removed.splice(removed.indexOf(from), 1);
    const what = from ? `moved from ${from.node} ${from.gpu.name}` : each.slot.state === "prepared" ? "made" : each.slot.state;
    other.push({ ...each, what });
  }
  for (const each of removed) other.push({ ...each, what: "removed" });
  const lines = other.slice(0, MOST_AT_ONCE).map(({ node, gpu, slot, owner, what }) => ({
    at, seen: true, namespace: owner[0], about: owner[1] || owner[2],
    reason: what, message: `${slot.profile || "the whole GPU"} on ${node} ${gpu.name}${slot.size ? ` at ${slot.at}:${slot.size}` : ""}`,
  }));
  if (other.length > MOST_AT_ONCE) {
    lines.push({ at, seen: true, namespace: "", about: "", reason: "changes", message: `and ${other.length - MOST_AT_ONCE} more at the same time` });
  }
  seen = [...lines, ...seen].slice(0, MOST_SEEN);
}

function showLine() {
  const { namespace, search } = filters();
  const lines = [...seen, ...told.items]
    .filter((each) => !namespace || each.namespace === namespace)
    .filter((each) => has(`${each.namespace}/${each.about} ${each.reason} ${each.message}`.toLowerCase(), search))
    .sort((a, b) => (a.at < b.at ? 1 : a.at > b.at ? -1 : 0)).slice(0, MOST_LINES);
  patch($("told"), lines, (each) => `${each.at} ${each.id ?? each.message} ${each.reason}`, (each) => [
    age(each.at), make("strong", {}, each.warning ? "⚠ " : "", each.reason), " ",
    each.about, each.seen || !each.namespace ? "" : make("span", { class: "quiet" }, ` ${each.namespace}`),
    make("div", { class: "quiet short", title: each.message }, each.message, each.seen ? " (seen)" : ""),
  ]);
  $("told-more").textContent = more(told.more, namespace, "events");
}

function more(counts, namespace, what) {
  const left = Object.entries(counts).filter(([name]) => !namespace || name === namespace);
  if (!left.length) return "";
  const said = left.slice(0, 5).map(([name, count]) => `${count} more of ${name}`);
  return `and ${said.join(", ")}${left.length > 5 ? `, and those of ${left.length - 5} more namespaces` : ""} (${what} are cut by namespace)`;
}

const drawn = new WeakMap();

// Children by key: those that stay are kept, with the focus, and only changed ones are made anew.
function patch(list, items, keyOf, childrenOf, decorate = () => {}) {
  const known = new Map([...list.children].map((child) => [child.dataset.key, child]));
  const kept = [];
  for (const item of items) {
    const key = keyOf(item), text = JSON.stringify(item);
    let child = known.get(key);
    known.delete(key);
    if (!child) child = make("li", { "data-key": key });
    if (drawn.get(child) !== text) {
      child.replaceChildren(...childrenOf(item).filter((each) => each !== ""));
      drawn.set(child, text);
    }
    decorate(child, item);
    kept.push(child);
  }
  for (const child of known.values()) child.remove();
  kept.forEach((child, index) => { if (list.children[index] !== child) list.insertBefore(child, list.children[index] ?? null); });
}

// --- filters ------------------------------------------------------------------------------------

function filters() {
  return {
    search: $("search").value.toLowerCase().split(/\s+/).filter(Boolean), namespace: $("namespace").value.trim(),
    product: $("product").value, state: $("state").value,
  };
}

const has = (text, search) => search.every((word) => text.includes(word));

function textOf(object, parts) {
  if (!words.has(object)) words.set(object, parts().join(" ").toLowerCase());
  return words.get(object);
}

const slotText = (slot) => textOf(slot, () => [slot.profile, slot.state, slot.note, ...slot.owners.map((o) => `${o[0]}/${o[1]} ${o[2]}`)]);

function matchesSlot(slot, { namespace, state }) {
  return (!namespace || slot.owners.some((o) => o[0] === namespace)) && (!state || slot.state === state);
}

// States that are a GPU's, not a slice's.
const ofSlots = ({ namespace, state }) => ({ namespace, state: ["look", "free", "unavailable"].includes(state) ? "" : state });
const isOdd = (slot) => Boolean(slot.note) || BROKEN.has(slot.state);
const needsLook = (node, gpu) => node.ready === false || Boolean(gpu.fault) || gpu.slots.some(isOdd);
const hasRoom = (gpu) => !gpu.blocked && !["", "none", "full"].includes(gpu.largest);

function matchesGpu(node, gpu, wanted) {
  const { search, product, state } = wanted, bySlot = ofSlots(wanted);
  if (product && gpu.product !== product) return false;
  if (state === "look" && !needsLook(node, gpu)) return false;
  if ((state === "free" && !hasRoom(gpu)) || (state === "unavailable" && !gpu.blocked)) return false;
  if ((bySlot.namespace || bySlot.state) && !gpu.slots.some((slot) => matchesSlot(slot, bySlot))) return false;
  return !search.length || has(textOf(gpu, () => [node.name, node.note, gpu.name, gpu.product, gpu.blocked, gpu.words, ...gpu.slots.map(slotText)]), search);
}

function showChoices() {
  const products = new Set(), spaces = new Set(waiting.items.map((each) => each.namespace));
  for (const node of nodes.values()) {
    for (const gpu of node.gpus) {
      products.add(gpu.product);
      for (const slot of gpu.slots) for (const owner of slot.owners) if (owner[0]) spaces.add(owner[0]);
    }
  }
  options($("product"), [...products].sort(byName), true);
  options($("namespaces"), [...spaces].sort(byName).slice(0, 1000), false);
}

function options(list, names, withAll) {
  const known = [...list.children].slice(withAll ? 1 : 0).map((each) => each.value);
  if (known.join("\n") === names.join("\n")) return;
  const value = list.value;
  list.replaceChildren(...(withAll ? [make("option", { value: "" }, "all")] : []), ...names.map((name) => make("option", { value: name }, name)));
  if (withAll) list.value = names.includes(value) ? value : "";
}

const isFiltered = ({ search, namespace, product, state }) => search.length > 0 || Boolean(namespace || product || state);

// --- figures, and room by profile -----------------------------------------------------------------

function totals() {
  const sum = { gpus: 0, used: 0, slices: 0, memory: 0, free: 0, look: [0, 0, 0] };
  for (const node of nodes.values()) {
    sum.memory += node.memory;
    sum.free += node.free;
    sum.gpus += node.gpus.length;
    if (node.ready === false) sum.look[0] += 1;
    for (const gpu of node.gpus) {
      const held = gpu.slots.filter((slot) => slot.state !== "ready");
      sum.slices += held.length;
      if (held.length) sum.used += 1;
      if (gpu.fault) sum.look[1] += 1; else sum.look[2] += held.filter(isOdd).length;
    }
  }
  return sum;
}

function showFigures() {
  const sum = totals(), [silent, faulty, odd] = sum.look, look = silent + faulty + odd;
  const waits = waiting.reasons.reduce((count, each) => count + each[1], 0);
  const parts = [silent && counted(silent, "node"), faulty && counted(faulty, "GPU"), odd && counted(odd, "slice")].filter(Boolean);
  const figure = (name, value, more, ...rest) => make("div", {}, make("dt", {}, name), make("dd", {}, make("b", {}, value), " ", more), ...rest);
  const show = make("button", { type: "button", onclick: () => { $("state").value = "look"; from = 0; showAll(); $("map").scrollIntoView(); } }, "Show");
  $("figures").replaceChildren(
    figure("Free memory", size(sum.free), `of ${size(sum.memory)}`, meter(sum.memory - sum.free, sum.memory, "used")),
    figure("Slices in use", number(sum.slices), `on ${number(sum.used)} of ${counted(sum.gpus, "GPU")}`, meter(sum.used, sum.gpus, "used")),
    figure("Pods that wait", number(waits), waiting.items.length ? make("span", {}, "the longest for ", age(waiting.items[0].at)) : ""),
    figure(look ? "⚠ Need a look" : "Need a look", number(look), parts.join(", ") || "all is well", look ? show : ""),
  );
  $("totals").textContent = `${counted(nodes.size, "node")}, ${counted(sum.gpus, "GPU")}`;
}

function showRooms() {
  const found = new Map();
  for (const node of nodes.values()) {
    for (const [name, rank, free, gpus, most, lacks] of node.rooms) {
      const sum = found.get(name) ?? { name, rank, free: 0, gpus: 0, most: 0, lacks: {} };
      sum.free += free; sum.gpus += gpus; sum.most += most;
      for (const [what, count] of Object.entries(lacks)) sum.lacks[what] = (sum.lacks[what] ?? 0) + count;
      found.set(name, sum);
    }
  }
  const rows = [...found.values()].sort((a, b) => a.rank - b.rank || byName(a.name, b.name));
  patch($("rooms"), rows, (each) => each.name, (each) => [
    make("span", { class: "what" }, each.name), make("b", { title: `could be made on ${counted(each.gpus, "GPU")}` }, number(each.free)), meter(each.free, each.most),
    each.free ? "" : make("span", { class: "quiet" }, whyNone(each)),
  ]);
}

function whyNone({ most, lacks }) {
  const [what, count] = Object.entries(lacks).sort((a, b) => b[1] - a[1])[0] ?? [];
  if (!most) return "on no GPU";
  return count ? `${counted(count, "GPU")} with the memory, but ${what === "place" ? "in the wrong places" : `too few ${what}`}` : "no GPU has the memory";
}

// --- every GPU, a cell each -----------------------------------------------------------------------

const canvas = $("fleet").querySelector("canvas");
// Room for the frame of a cell that lies at an edge.
const EDGE = 2;
let names = [], grid = null, cursor = 0, cell = "";

function measure(count, most, width) {
  const limit = Math.max(300, innerHeight * 0.43);
  for (const high of [80, 56, 44, 36, 28, 22, 18, 15, 12, 10, 8, 7, 5]) {
    const wide = Math.max(3, Math.round(high * 0.5)), gap = high > 20 ? 3 : high > 8 ? 1 : 0, head = high > 20 ? 18 : 0;
    const between = head ? 20 : Math.max(3, Math.round(wide * 0.8));
    const across = Math.max(most * (wide + gap) - gap, head ? 84 : 0) + between;
    const down = head + high + (head ? 16 : high > 5 ? Math.max(3, Math.round(high * 0.3)) : 2);
    const perRow = Math.max(1, Math.floor((width + between) / across)), rows = Math.ceil(count / perRow);
    const spread = rows > 1 ? Math.floor((width + between) / perRow) : across;
    if (rows * down <= limit || high === 5) return { high, wide, gap, head, across: spread, down, perRow, width, height: rows * down };
  }
}

const sizeClass = (slot, columns) => ["s1", "s2", "s3", "s4", "s7"].find((each) => each === `s${parseInt(slot.profile, 10)}`) ?? (!slot.size || slot.size === columns ? "s7" : "other");

function showFleet() {
  const width = $("fleet").clientWidth, sharp = devicePixelRatio || 1;
  names = [...nodes.keys()].sort(byName);
  const most = Math.max(1, ...names.map((name) => nodes.get(name).gpus.length));
  grid = measure(names.length, most, width - 2 * EDGE);
  canvas.width = width * sharp;
  canvas.height = (grid.height + 2 * EDGE) * sharp;
  canvas.style.height = `${grid.height + 2 * EDGE}px`;
  const pen = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
  const paint = Object.fromEntries(["s1", "s2", "s3", "s4", "s7", "other", "free", "edge", "away", "odd", "text", "quiet", "back", "blocks"].map((each) => [each, style.getPropertyValue(`--${each}`)]));
  const wanted = filters(), filtered = isFiltered(wanted), ways = new Set(places.map(([node, gpu]) => `${node} ${gpu}`));
  pen.scale(sharp, sharp);
  pen.translate(EDGE, EDGE);
  pen.font = "500 11.5px system-ui, sans-serif";
  names.forEach((name, index) => {
    const node = nodes.get(name), left = (index % grid.perRow) * grid.across, top = Math.floor(index / grid.perRow) * grid.down + grid.head;
    if (grid.head) {
      let text = `${node.ready === false ? "⚠ " : ""}${name}`;
      while (text.length > 4 && pen.measureText(text).width > grid.across - 8) text = `…${text.slice(2)}`;
      pen.fillStyle = node.ready === false ? paint.text : paint.quiet;
      pen.fillText(text, left, top - 6);
    }
    node.gpus.forEach((gpu, number) => {
      pen.globalAlpha = filtered && !matchesGpu(node, gpu, wanted) ? 0.15 : 1;
      drawCell(pen, paint, gpu, left + number * (grid.wide + grid.gap), top);
      if (ways.has(`${name} ${gpu.name}`)) frame(pen, paint.blocks, left + number * (grid.wide + grid.gap), top);
    });
    pen.globalAlpha = 1;
    if (node.ready === false) {
      pen.fillStyle = paint.odd;
      pen.fillRect(left, top + grid.high + 1, node.gpus.length * (grid.wide + grid.gap) - grid.gap, grid.head ? 3 : Math.min(2, grid.high - 4));
    }
  });
  pointAt(Math.min(cursor, names.length - 1), cell);
}

function drawCell(pen, paint, gpu, left, top) {
  const { wide, high } = grid, columns = gpu.slices || 1, apart = high > 20 ? 1 : 0;
  const box = (color, from, to) => { pen.fillStyle = color; pen.fillRect(left, top + high - to, wide, to - from - (from ? apart : 0)); };
  const line = (color, ...points) => {
    pen.strokeStyle = color;
    pen.lineWidth = high > 20 ? 2 : 1;
    pen.beginPath();
    for (const [x, y, x2, y2] of points) { pen.moveTo(left + x, top + y); pen.lineTo(left + x2, top + y2); }
    pen.stroke();
  };
  box(gpu.fault ? paint.odd : gpu.blocked ? paint.away : paint.free, 0, high);
  if (!gpu.fault) {
    for (const slot of gpu.slots) {
      const kind = isOdd(slot) ? "odd" : slot.state === "ready" ? "edge" : sizeClass(slot, columns);
      box(paint[kind], (slot.at / columns) * high, ((slot.size ? slot.at + slot.size : columns) / columns) * high);
    }
  }
  if (high > 12) { pen.strokeStyle = paint.edge; pen.lineWidth = 1; pen.strokeRect(left + 0.5, top + 0.5, wide - 1, high - 1); }
  if (wide < 6) return;
  if (gpu.fault) line(paint.back, [1, 1, wide - 1, high - 1], [wide - 1, 1, 1, high - 1]);
  else if (gpu.blocked) line(paint.quiet, [1, high - 1, wide - 1, 1]);
}

function frame(pen, color, left, top) {
  pen.strokeStyle = color;
  pen.lineWidth = 2;
  pen.strokeRect(left - 1, top - 1, grid.wide + 2, grid.high + 2);
}

function summary(node) {
  const state = node.ready === false ? `, NOT READY: ${node.note}` : node.note ? `, ${node.note}` : "";
  const look = node.gpus.filter((gpu) => needsLook(node, gpu)).length;
  return `${node.name}: ${counted(node.gpus.length, "GPU")}, ${size(node.free)} of ${size(node.memory)} free${state}${look && node.ready !== false ? `, ${counted(look, "GPU")} to look at` : ""}`;
}

function roomOf(gpu) {
  if (gpu.blocked) return ["unavailable", gpu.slots.length ? gpu.blocked : ""];
  if (gpu.largest === "none") return ["nothing fits", `${gpu.free} free, ${gpu.lack || "in no place for a slice"}`];
  return gpu.largest === "full" ? ["full", ""] : gpu.largest ? [`${gpu.largest} fits`, `${gpu.free} free`] : ["", ""];
}

function pointAt(index, gpuName = "") {
  const node = nodes.get(names[index]), gpu = node?.gpus.find((each) => each.name === gpuName), mark = $("cursor");
  mark.hidden = !node;
  if (!node) { $("fleet").removeAttribute("aria-activedescendant"); $("pointed").textContent = ""; return; }
  cursor = index;
  cell = gpuName;
  $("fleet").setAttribute("aria-activedescendant", "cursor");
  mark.setAttribute("aria-label", summary(node));
  mark.setAttribute("aria-posinset", index + 1);
  mark.setAttribute("aria-setsize", names.length);
  mark.style.left = `${(index % grid.perRow) * grid.across - 4 + EDGE}px`;
  mark.style.top = `${Math.floor(index / grid.perRow) * grid.down + grid.head - 4 + EDGE}px`;
  mark.style.width = `${node.gpus.length * (grid.wide + grid.gap) - grid.gap + 8}px`;
  mark.style.height = `${grid.high + 8}px`;
  const held = gpu && !gpu.blocked ? gpu.words || `${counted(gpu.slots.length, "slice")}, ${roomOf(gpu).join(" ")}` : gpu?.blocked;
  $("pointed").textContent = gpu ? `${node.name} ${gpu.name}: ${held}` : summary(node);
}

function under(event) {
  const box = canvas.getBoundingClientRect(), x = event.clientX - box.left - EDGE, y = event.clientY - box.top - EDGE;
  const column = Math.min(grid.perRow - 1, Math.floor(x / grid.across)), index = Math.floor(y / grid.down) * grid.perRow + column;
  const gpu = nodes.get(names[index])?.gpus[Math.floor((x - column * grid.across) / (grid.wide + grid.gap))];
  return [index, gpu?.name];
}

// --- nodes in detail ------------------------------------------------------------------------------

const sections = new Map();
let from = 0;

function matching() {
  const wanted = filters();
  return [...nodes.keys()].sort(byName).filter((name) => {
    const node = nodes.get(name);
    if (node.gpus.length) return node.gpus.some((gpu) => matchesGpu(node, gpu, wanted));
    const fits = !wanted.state || (wanted.state === "look" && node.ready === false);
    return fits && !wanted.namespace && !wanted.product && has(`${name} ${node.note}`.toLowerCase(), wanted.search);
  });
}

function showNodes() {
  const found = matching();
  if (from >= found.length) from = 0;
  const seen = found.slice(from, from + A_PAGE), kept = new Set(seen);
  for (const [name, section] of sections) if (!kept.has(name)) { section.remove(); sections.delete(name); }
  seen.forEach((name, index) => {
    let section = sections.get(name);
    if (!section) {
      section = make("section", { class: "node card", "aria-label": `node ${name}`, tabindex: "-1" });
      section.dataset.name = name;
      sections.set(name, section);
    }
    if ($("nodes").children[index] !== section) $("nodes").insertBefore(section, $("nodes").children[index] ?? null);
    fill(section);
  });
  const all = found.length === nodes.size ? "" : `, ${number(nodes.size)} in all`;
  const turn = (text, to, able) => make("button", { type: "button", id: text, ...(able ? {} : { disabled: "" }), onclick: () => { from = to; showNodes(); $("map").scrollIntoView(); } }, text);
  const place = found.length > A_PAGE ? `${number(from + 1)} to ${number(from + seen.length)} of ${number(found.length)}${all}` : `${number(found.length)}${all}`;
  const focused = document.activeElement?.parentElement === $("pages") ? document.activeElement.id : "";
  $("pages").replaceChildren(make("span", { class: "quiet" }, place),
    ...(found.length > A_PAGE ? [turn("Before", Math.max(0, from - A_PAGE), from > 0), turn("After", from + A_PAGE, from + A_PAGE < found.length)] : []));
  if (focused) $(focused)?.focus();
  showFleet();
}

// Shows a node, and one of its GPUs, whatever page and filters hide it.
function reveal(name, gpu = "") {
  let index = matching().indexOf(name);
  if (index < 0 && nodes.has(name)) { $("filters").reset(); index = matching().indexOf(name); }
  if (index < 0) return;
  from = Math.floor(index / A_PAGE) * A_PAGE;
  here = [name, gpu];
  showNodes();
  const section = sections.get(name);
  (section.querySelector(".gpu.here") ?? section).scrollIntoView({ block: gpu ? "center" : "start" });
  section.focus({ preventScroll: true });
}

const marks = () => places[Math.max(0, place)];

function fill(section) {
  const node = nodes.get(section.dataset.name), wanted = filters(), way = marks();
  const state = JSON.stringify([wanted, way?.[0] === node.name ? way : "", here?.[0] === node.name ? here : ""]);
  if (section.filled === node && section.drawnFor === state) return;
  const gpus = node.gpus.filter((gpu) => matchesGpu(node, gpu, wanted));
  const products = new Map();
  for (const gpu of node.gpus) products.set(gpu.product, (products.get(gpu.product) ?? 0) + 1);
  const head = make("div", { class: "head" }, make("h3", {}, node.name),
    make("span", { class: "quiet" }, [...products].map(([name, count]) => `${count} × ${name}`).join(", ") || "no GPU"),
    node.gpus.length ? make("span", { class: "quiet" }, `${size(node.free)} of ${size(node.memory)} free`) : "",
    make("span", node.ready === false ? { class: "bad" } : { class: "quiet" }, node.ready === false ? `⚠ NOT READY: ${node.note}` : node.note));
  const known = new Map([...section.querySelectorAll(".gpu")].map((row) => [row.dataset.name, row]));
  const rows = gpus.map((gpu) => {
    const old = known.get(gpu.name);
    return old && section.drawnFor === state && drawn.get(old) === JSON.stringify(gpu) ? old : row(node, gpu, wanted);
  });
  const details = section.querySelector("details") ?? make("details", { ontoggle: () => showTable(section) }, make("summary", { class: "quiet" }, "as a table"), make("div"));
  section.filled = node;
  section.drawnFor = state;
  section.classList.toggle("here", here?.[0] === node.name);
  const focused = details.contains(document.activeElement) ? document.activeElement : null;
  section.replaceChildren(head, ...rows, details);
  focused?.focus();
  showTable(section);
}

function row(node, gpu, wanted) {
  const way = marks(), blocks = new Set(way && way[0] === node.name && way[1] === gpu.name ? way[2] : []);
  const own = `${node.name} ${gpu.name} ${gpu.product}`.toLowerCase();
  const sought = { ...ofSlots(wanted), left: wanted.search.filter((word) => !own.includes(word)) };
  const columns = gpu.slices || 1, taken = new Array(columns).fill(false);
  const bar = make("ul", { class: "bar", "aria-label": `${node.name} ${gpu.name}` });
  bar.style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
  for (const slot of [...gpu.slots].sort((a, b) => a.at - b.at)) {
    const wide = slot.size || columns;
    for (let i = slot.at; i < Math.min(columns, slot.at + wide); i += 1) taken[i] = true;
    bar.append(at(drawSlot(slot, columns, blocks.has(slot.at), sought), slot.at, wide));
  }
  for (let i = 0; i < columns; i += 1) {
    if (taken[i]) continue;
    let end = i;
    while (end < columns && !taken[end]) end += 1;
    const text = gpu.blocked ? (end - i === columns ? gpu.blocked : "unavailable") : gpu.words || "free";
    bar.append(at(make("li", { class: "slot free", title: gpu.blocked || text }, make("span", {}, text)), i, end - i));
    i = end - 1;
  }
  const focus = here?.[0] === node.name && here[1] === gpu.name, [largest, room] = roomOf(gpu);
  const made = make("div", { class: `gpu${gpu.blocked ? " away" : ""}${gpu.fault ? " fault" : ""}${focus ? " here" : ""}`, "data-name": gpu.name },
    make("span", { class: "name" }, gpu.name), bar,
    make("span", { class: "room", title: gpu.blocked || "largest profile that fits, and free memory" }, make("b", {}, gpu.fault ? "⚠ " : "", largest), " ", make("span", { class: "quiet" }, room)));
  drawn.set(made, JSON.stringify(gpu));
  return made;
}

function at(element, start, size) {
  element.style.gridArea = `1 / ${start + 1} / 2 / span ${size}`;
  return element;
}

const nameOf = (owner) => owner[1] || owner[2];
const ownersOf = (slot) => {
  const pods = slot.owners.map(nameOf);
  return pods.length > 1 ? `${pods.length} share it: ${pods.join(", ")}` : pods[0] ?? slot.state;
};

// Of a name that is too long its middle is left out: pods of one Deployment differ at the end.
function twoEnds(text) {
  const cut = text.length > 10 ? text.length - 5 : text.length;
  return make("span", { class: "pod" }, make("span", {}, text.slice(0, cut)), cut < text.length ? make("span", {}, text.slice(cut)) : "");
}

function drawSlot(slot, columns, blocks, wanted) {
  const missed = !matchesSlot(slot, wanted) || !has(slotText(slot), wanted.left), odd = isOdd(slot);
  const kind = slot.state === "ready" ? "ready" : sizeClass(slot, columns);
  const state = slot.state === "prepared" || !slot.owners.length ? "" : slot.state;
  const owner = ownersOf(slot), spaces = [...new Set(slot.owners.map((o) => o[0]).filter(Boolean))].join(", ");
  const more = [spaces, slot.profile || "whole", state].filter(Boolean).join(" · ");
  const title = `${blocks ? "in the way: " : ""}${owner}, ${more}${slot.note ? `, ${slot.note}` : ""}`;
  const made = twoEnds(owner);
  made.prepend(...[blocks ? "▲ " : "", odd ? "⚠ " : ""].filter(Boolean));
  return make("li", { class: `slot ${kind}${odd ? " odd" : USUAL.has(slot.state) ? "" : " unusual"}${missed ? " dim" : ""}${blocks ? " blocks" : ""}`, title },
    made, make("span", { class: "of" }, more), blocks ? make("b", { class: "sr" }, "in the way") : "");
}

function showTable(section) {
  const node = section.filled, details = section.querySelector("details");
  if (!node || !details.open) return;
  const cells = ["GPU", "Placement", "Profile", "State", "Pod", "Namespace", "Claim", "Remark"];
  const lines = node.gpus.flatMap((gpu) => gpu.slots.flatMap((slot) => (slot.owners.length ? slot.owners : [["", "", ""]]).map((owner) => [
    gpu.name, slot.size ? `${slot.at}:${slot.size}` : "whole", slot.profile, slot.state, owner[1], owner[0], owner[2], slot.note,
  ])));
  details.lastElementChild.replaceChildren(make("table", {}, make("thead", {}, make("tr", {}, ...cells.map((c) => make("th", { scope: "col" }, c)))),
    make("tbody", {}, ...lines.map((line) => make("tr", {}, ...line.map((c) => make("td", {}, c)))))));
}

// --- who waits, and why ---------------------------------------------------------------------------

let active = "";
const keyOfPod = (each) => `${each.namespace}/${each.name}`;

function showWaiting() {
  const { namespace, search } = filters(), count = waiting.reasons.reduce((sum, each) => sum + each[1], 0);
  if (reason && !waiting.reasons.some((each) => each[0] === reason)) reason = "";
  patch($("reasons"), waiting.reasons, (each) => each[0], (each) => [
    make("button", { type: "button", onclick: () => { reason = reason === each[0] ? "" : each[0]; showWaiting(); } }, make("span", {}, each[0]), make("b", {}, number(each[1])), meter(each[1], count, "waits")),
  ], (child, each) => child.firstChild.setAttribute("aria-pressed", String(each[0] === reason)));
  const shown = waiting.items.filter((each) => (!namespace || each.namespace === namespace) && (!reason || each.reason === reason) &&
    has(`${keyOfPod(each)} ${each.reason} ${each.message}`.toLowerCase(), search));
  if (!shown.some((each) => keyOfPod(each) === active)) active = shown.length ? keyOfPod(shown[0]) : "";
  patch($("pods"), shown, keyOfPod, (each) => [
    twoEnds(each.name), age(each.at), make("div", { class: "quiet" }, `${each.namespace} · ${each.reason}`),
  ], (child, each) => {
    const key = keyOfPod(each);
    child.id = `pod-${key}`;
    child.setAttribute("role", "option");
    child.setAttribute("aria-selected", String(key === chosen));
    child.classList.toggle("active", key === active);
  });
  if (active) $("pods").setAttribute("aria-activedescendant", `pod-${active}`); else $("pods").removeAttribute("aria-activedescendant");
  $("waiting-title").textContent = `Waiting: ${number(count)}`;
  $("pods-more").textContent = more(waiting.more, namespace, "pods");
}

function choose(key) {
  chosen = key;
  why = null;
  mark([]);
  showWaiting();
  showWhy();
  if (key) askWhy();
}

async function askWhy() {
  const asked = chosen, began = Date.now();
  nextAsk = Infinity;
  let found;
  try { found = await ask("why", { pod: asked }); } catch (error) { found = { error: error.message || "no answer" }; }
  // Of a large cluster an answer takes seconds, which are not to be all that its server does.
  nextAsk = Date.now() + Math.max(ASK_AGAIN, 10 * (Date.now() - began));
  if (asked !== chosen) return;
  why = found;
  mark(why.blocked ?? []);
  showWhy();
}

function mark(found) {
  const kept = places[place];
  places = found;
  place = kept ? found.findIndex((each) => each[0] === kept[0] && each[1] === kept[1]) : -1;
  for (const section of sections.values()) fill(section);
  showFleet();
}

function leaving([name, gpu, starts]) {
  const slots = nodes.get(name)?.gpus.find((each) => each.name === gpu)?.slots.filter((slot) => starts.includes(slot.at)) ?? [];
  const rest = slots.length > 3 ? `, and ${slots.length - 3} more` : "";
  return `${slots.slice(0, 3).map((slot) => `${ownersOf(slot)} (${slot.profile || "whole"})`).join(", ")}${rest}`;
}

function showWhy() {
  $("why").hidden = !chosen;
  if (!chosen) { $("why").replaceChildren(); return; }
  const said = waiting.items.find((each) => keyOfPod(each) === chosen), [namespace, name] = chosen.split("/");
  const parts = [];
  if (why?.wanted?.length) parts.push(make("p", { class: "quiet" }, `wants ${why.wanted.join(", ")}`));
  if (why?.error) parts.push(make("p", { class: "bad" }, why.error));
  if (places.length) {
    const more = why?.more ? `, and ${counted(why.more, "more GPU")} with as much or more in the way` : "";
    parts.push(make("h4", {}, "Ways out, the cheapest first"), make("ol", { id: "ways" }, ...places.map((each, index) => make("li", {}, make("button", {
      type: "button", id: `way-${index}`, ...(index === place ? { "aria-current": "true" } : {}), onclick: () => go(index),
    }, make("b", {}, `${each[0]} ${each[1]}`), make("span", {}, ` if ${leaving(each)} ${each[2].length > 1 ? "end" : "ends"}`))))),
    make("p", { id: "places", class: "quiet" }, placeText() + more));
  }
  for (const each of why?.findings ?? []) {
    parts.push(make("p", {}, make("strong", {}, each.reason), `: ${each.message}`, each.remedy ? make("span", { class: "quiet" }, ` → ${each.remedy}`) : ""));
  }
  if (!why?.findings?.length && said) parts.push(make("p", {}, make("strong", {}, said.reason), `: ${said.message}`));
  if (!why) parts.push(make("p", { class: "quiet" }, "asking …"));
  if (why?.unread?.length) parts.push(make("p", { class: "quiet" }, `not allowed to read: ${why.unread.join(", ")}`));
  for (const each of why?.events ?? []) parts.push(make("p", { class: "quiet" }, `event of ${each.source || "nobody"}, or of whoever may write events: ${each.reason}: ${each.message}`));
  const focused = $("why").contains(document.activeElement) ? document.activeElement.id : "";
  $("why").replaceChildren(make("div", { class: "head" }, make("h3", {}, name, " ", make("span", { class: "quiet" }, namespace)),
    make("button", { type: "button", id: "close", "aria-label": "Close", onclick: () => choose(null) }, "✕")), ...parts);
  if (focused) $(focused)?.focus();
}

const placeText = () => `${place < 0 ? "" : `${place + 1} of `}${counted(places.length, "way")}${place < 0 ? ", framed in every GPU" : ""}`;

function go(index) {
  if (!places.length) return;
  place = (index + places.length) % places.length;
  reveal(places[place][0], places[place][1]);
  showWhy();
}

// --- the rest ---------------------------------------------------------------------------------------

function showStatus() {
  const lost = lostAt !== null, stale = latest.stale ?? [], loading = latest.loading ?? [];
  const text = lost ? `not connected since ${lostAt.toLocaleTimeString()}: ${latest.error}`
    : stale.length ? `the cluster does not answer: ${stale.join(", ")} may be old`
      : latest.backlog ? `loading ${latest.backlog} nodes`
      : loading.length ? `loading ${loading.join(", ")}`
      : latest.leaderless ? "live, but no controller leads: new pods are neither served nor shown" : "live";
  $("status").classList.toggle("lost", lost || stale.length > 0 || latest.leaderless);
  if ($("status").textContent !== text) $("status").textContent = text;
}

function showNote() {
  const kinds = latest.hidden ?? [];
  $("note").hidden = !kinds.length;
  $("note").textContent = kinds.length ? `You may not list ${kinds.join(", ")} everywhere: only those of the namespace of kubectl mig ui -n are shown, as far as you may.` : "";
}

function showAll() { showNodes(); showWaiting(); showLine(); showNote(); }

function keys(list, act) {
  list.addEventListener("keydown", (event) => { if (!event.ctrlKey && !event.metaKey && !event.altKey && act(event.key)) event.preventDefault(); });
}

$("state").append(...Object.entries(STATES).map(([name, text]) => make("option", { value: name }, name === "look" ? text : `${name}: ${text}`)));
$("legend").append(...[["s1", "1g"], ["s2", "2g"], ["s3", "3g"], ["s4", "4g"], ["s7", "7g or whole"], ["free", "free"], ["ready", "made, free"], ["away", "unavailable"], ["odd", "⚠ needs a look"], ["blocks", "▲ way out"]]
  .map(([kind, text]) => make("li", {}, make("i", { class: kind }), ` ${text}`)));
$("filters").addEventListener("submit", (event) => event.preventDefault());
$("filters").addEventListener("reset", () => setTimeout(showAll));
for (const name of ["namespace", "product", "state"]) $(name).addEventListener("change", () => { from = 0; showAll(); });
let typing = 0;
$("search").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(() => { from = 0; showAll(); }, 120); });
canvas.addEventListener("pointermove", (event) => pointAt(...under(event)));
$("fleet").addEventListener("click", (event) => {
  const [index, gpu] = under(event);
  if (nodes.has(names[index])) reveal(names[index], gpu);
});
keys($("fleet"), (key) => {
  const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: grid.perRow, ArrowUp: -grid.perRow, Home: -names.length, End: names.length };
  if (key in steps) pointAt(Math.max(0, Math.min(names.length - 1, cursor + steps[key])));
  else if (key === "Enter" || key === " ") reveal(names[cursor]);
  return key in steps || key === "Enter" || key === " ";
});
$("pods").addEventListener("click", (event) => {
  const option = event.target.closest("li");
  if (option) { active = option.dataset.key; choose(chosen === active ? null : active); }
});
keys($("pods"), (key) => {
  const all = [...$("pods").children].map((child) => child.dataset.key), index = all.indexOf(active);
  const to = { ArrowDown: index + 1, ArrowUp: index - 1, Home: 0, End: all.length - 1 }[key];
  if (to !== undefined && all.length) {
    active = all[Math.max(0, Math.min(all.length - 1, to))];
    showWaiting();
    $(`pod-${active}`).scrollIntoView({ block: "nearest" });
  } else if ((key === "Enter" || key === " ") && active) choose(chosen === active ? null : active);
  else return false;
  return true;
});
keys(document, (key) => {
  if (key === "Escape") { if (chosen) choose(null); else $("filters").reset(); return false; }
  if (document.activeElement.closest("input, select")) return false;
  const act = { "/": () => $("search").focus(), w: () => $("pods").focus(), f: () => $("fleet").focus(), n: () => go(place + 1), p: () => go(place < 0 ? -1 : place - 1) }[key];
  act?.();
  return Boolean(act);
});
addEventListener("hashchange", takeToken);
new ResizeObserver(() => { if (grid?.width !== $("fleet").clientWidth - 2 * EDGE) showFleet(); }).observe($("fleet"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showFleet);

takeToken();
token ||= sessionStorage.getItem("token") ?? "";
poll();
