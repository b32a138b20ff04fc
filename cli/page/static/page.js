// Draws what the server tells, and only what is near the part of the page that is seen.
// All texts get into the page as text nodes.

const POLL = 2000, SOON = 250, PATIENCE = 30000, ASK_AGAIN = 10000;
const MOST_SEEN = 300, MOST_AT_ONCE = 40, MOST_LINES = 200;
const USUAL = new Set(["prepared", "allocated", "preparing", "ready"]);
const STATES = {
  prepared: "made, in use", allocated: "given to a claim, not made yet", preparing: "being made",
  ready: "made, free", reclaiming: "its claim is gone, not removed yet",
  orphan: "left by a failure, not removed yet", foreign: "made by another program, left alone",
  lost: "a claim's, and gone from the GPU", free: "has room", unavailable: "nothing is given out",
};

const $ = (id) => document.getElementById(id);
const byName = new Intl.Collator("en", { numeric: true }).compare;

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

// --- what is known ---------------------------------------------------------------------------

let token = "", version = "", lostAt = null, latest = {};
const nodes = new Map();
let waiting = { items: [], more: {} }, told = { items: [], more: {} };
let seen = [];
let chosen = null, why = null, askedAt = 0, blocked = new Map(), places = [], place = -1;
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
  if (changed) { showChoices(); showNodes(); }
  if (changed || found.waiting) showWaiting();
  if (changed || found.told) showLine();
  showNote();
  if (chosen && (changed || found.waiting) && Date.now() - askedAt > ASK_AGAIN) askWhy();
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
    if (before.get(name) === nodes.get(name)) continue;
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
    at, seen: true, namespace: owner[0], about: owner[0] ? `${owner[0]}/${owner[1] || owner[2]}` : owner[1],
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
    make("time", { datetime: each.at, class: "quiet" }, clock(each.at)), " ",
    make("strong", each.warning ? { class: "bad" } : {}, each.warning ? "⚠ " : "", each.reason), " ",
    each.seen || !each.namespace ? each.about : `${each.namespace}: ${each.about}`,
    make("div", { class: "quiet" }, each.message, each.seen ? " (seen)" : ""),
  ]);
  $("told-more").textContent = more(told.more, namespace, "events");
}

const clock = (at) => {
  const date = new Date(at);
  return Number.isNaN(date.valueOf()) ? "" : date.toLocaleString([], { dateStyle: "short", timeStyle: "medium" });
};

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
const ofSlots = ({ namespace, state }) => ({ namespace, state: ["free", "unavailable"].includes(state) ? "" : state });
const hasRoom = (gpu) => !gpu.blocked && !["", "none", "full"].includes(gpu.largest);

function matchesGpu(node, gpu, wanted) {
  const { search, product, state } = wanted, bySlot = ofSlots(wanted);
  if (product && gpu.product !== product) return false;
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

// --- the map ------------------------------------------------------------------------------------

const sections = new Map();
const near = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) isIntersecting ? fill(target) : drain(target);
}, { rootMargin: "800px 0px" });

function showNodes() {
  const wanted = filters();
  const names = [...nodes.keys()].sort(byName).filter((name) => {
    const node = nodes.get(name);
    if (node.gpus.length) return node.gpus.some((gpu) => matchesGpu(node, gpu, wanted));
    return !wanted.namespace && !wanted.product && !wanted.state && has(`${name} ${node.note}`.toLowerCase(), wanted.search);
  });
  const shown = new Set(names);
  for (const [name, section] of sections) {
    if (!shown.has(name)) { near.unobserve(section); section.remove(); sections.delete(name); }
  }
  names.forEach((name, index) => {
    let section = sections.get(name);
    if (!section) {
      section = make("section", { class: "node", "aria-label": `node ${name}` });
      section.dataset.name = name;
      section.style.height = `${1.4 + 1.5 + 2.6 * nodes.get(name).gpus.length + 1}rem`;
      sections.set(name, section);
    }
    if ($("nodes").children[index] !== section) $("nodes").insertBefore(section, $("nodes").children[index] ?? null);
    if (section.filled) fill(section); else near.observe(section);
  });
  const gpus = names.reduce((sum, name) => sum + nodes.get(name).gpus.length, 0);
  const all = names.length === nodes.size ? "" : ` of ${nodes.size}`;
  $("totals").textContent = `${names.length}${all} nodes, ${gpus} GPUs${all ? " there" : ""}`;
}

function drain(section) {
  if (!section.filled || section.contains(document.activeElement) || section.querySelector("details[open]")) return;
  section.style.height = `${section.offsetHeight}px`;
  section.filled = null;
  section.replaceChildren();
}

function fill(section) {
  const node = nodes.get(section.dataset.name);
  if (!node) return;
  const wanted = filters();
  const state = JSON.stringify([wanted, [...(blocked.get(node.name) ?? [])].map(([k, v]) => [k, [...v]]), places[place]]);
  if (section.filled === node && section.drawnFor === state) return;
  const open = section.querySelector("details[open]") !== null;
  const gpus = node.gpus.filter((gpu) => matchesGpu(node, gpu, wanted));
  const products = new Map();
  for (const gpu of node.gpus) products.set(gpu.product, (products.get(gpu.product) ?? 0) + 1);
  const head = make("div", { class: "head" }, make("h3", {}, node.name),
    make("span", { class: "quiet" }, [...products].map(([name, count]) => `${count} × ${name}`).join(", ") || "no GPU"),
    make("span", node.ready === false ? { class: "bad" } : { class: "quiet" }, node.ready === false ? `NOT READY: ${node.note}` : node.note));
  const known = new Map([...section.querySelectorAll(".gpu")].map((row) => [row.dataset.name, row]));
  const rows = gpus.map((gpu) => {
    const old = known.get(gpu.name);
    return old && section.drawnFor === state && drawn.get(old) === JSON.stringify(gpu) ? old : row(node, gpu, wanted);
  });
  const details = section.querySelector("details") ?? make("details", { ontoggle: () => showTable(section) }, make("summary", { class: "quiet" }, "in words"), make("div"));
  section.filled = node;
  section.drawnFor = state;
  const focused = details.contains(document.activeElement) ? document.activeElement : null;
  section.replaceChildren(head, ...rows, details);
  focused?.focus();
  section.style.height = "";
  if (open) showTable(section);
}

function row(node, gpu, wanted) {
  const marks = blocked.get(node.name)?.get(gpu.name);
  const own = `${node.name} ${gpu.name} ${gpu.product}`.toLowerCase();
  const sought = { ...ofSlots(wanted), left: wanted.search.filter((word) => !own.includes(word)) };
  const columns = gpu.slices || 1, taken = new Array(columns).fill(false);
  const bar = make("ul", { class: "bar", "aria-label": `${node.name} ${gpu.name}` });
  bar.style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
  for (const slot of [...gpu.slots].sort((a, b) => a.at - b.at)) {
    const size = slot.size || columns;
    for (let i = slot.at; i < Math.min(columns, slot.at + size); i += 1) taken[i] = true;
    bar.append(at(drawSlot(slot, size, columns, marks?.has(slot.at), sought), slot.at, size));
  }
  for (let i = 0; i < columns; i += 1) {
    if (taken[i]) continue;
    let end = i;
    while (end < columns && !taken[end]) end += 1;
    const text = gpu.blocked ? (end - i === columns ? gpu.blocked : "unavailable") : gpu.words || "free";
    bar.append(at(make("li", { class: "slot free", title: gpu.blocked || text }, make("span", {}, text)), i, end - i));
    i = end - 1;
  }
  const here = place >= 0 && places[place][0] === node.name && places[place][1] === gpu.name;
  const room = gpu.blocked ? "unavailable" : gpu.largest ? `${gpu.largest} ${gpu.free}` : "";
  const made = make("div", { class: `gpu${gpu.blocked ? " away" : ""}${here ? " here" : ""}`, "data-name": gpu.name },
    make("span", { class: "name" }, gpu.name), bar, make("span", { class: "quiet", title: "largest profile that fits, and free memory" }, room));
  drawn.set(made, JSON.stringify(gpu));
  return made;
}

function at(element, start, size) {
  element.style.gridArea = `1 / ${start + 1} / 2 / span ${size}`;
  return element;
}

function ownersOf(slot) {
  const names = slot.owners.map((o) => (o[0] ? `${o[0]}/${o[1] || o[2]}` : o[1]));
  return names.length > 1 ? `${names.length} share it: ${names.join(", ")}` : names[0] ?? slot.state;
}

function drawSlot(slot, size, columns, blocks, wanted) {
  const usual = USUAL.has(slot.state) && !slot.note;
  const missed = !matchesSlot(slot, wanted) || !has(slotText(slot), wanted.left);
  const kind = slot.state === "ready" ? "ready" : ["s1", "s2", "s3", "s4", "s7"].find((each) => each === `s${parseInt(slot.profile, 10)}`) ?? (size === columns ? "s7" : "");
  const state = slot.state === "prepared" || !slot.owners.length ? "" : slot.state;
  const owner = ownersOf(slot), text = `${slot.profile || "whole"} ${state}`.trim();
  const signs = `${blocks ? "▲ " : ""}${slot.note ? "⚠ " : ""}`;
  const title = `${blocks ? "in the way: " : ""}${text}, ${owner}${slot.note ? `, ${slot.note}` : ""}`;
  return make("li", { class: `slot ${kind}${usual ? "" : " odd"}${missed ? " dim" : ""}${blocks ? " blocks" : ""}`, title },
    make("span", {}, signs, text), make("span", {}, owner), blocks ? make("b", { class: "sr" }, "in the way") : "");
}

function showTable(section) {
  const node = section.filled, details = section.querySelector("details");
  if (!node || !details.open) return;
  const cells = ["GPU", "Placement", "Profile", "State", "Namespace", "Pod", "Claim", "Remark"];
  const lines = node.gpus.flatMap((gpu) => gpu.slots.flatMap((slot) => (slot.owners.length ? slot.owners : [["", "", ""]]).map((owner) => [
    gpu.name, slot.size ? `${slot.at}:${slot.size}` : "whole", slot.profile, slot.state, ...owner, slot.note,
  ])));
  details.lastElementChild.replaceChildren(make("table", {}, make("thead", {}, make("tr", {}, ...cells.map((c) => make("th", { scope: "col" }, c)))),
    make("tbody", {}, ...lines.map((line) => make("tr", {}, ...line.map((c) => make("td", {}, c)))))));
}

// --- who waits, and why ---------------------------------------------------------------------------

let active = "";
const keyOfPod = (each) => `${each.namespace}/${each.name}`;

function showWaiting() {
  const { namespace, search } = filters();
  const shown = waiting.items.filter((each) => (!namespace || each.namespace === namespace) &&
    has(`${keyOfPod(each)} ${each.reason} ${each.message}`.toLowerCase(), search));
  if (!shown.some((each) => keyOfPod(each) === active)) active = shown.length ? keyOfPod(shown[0]) : "";
  patch($("pods"), shown, keyOfPod, (each) => [
    make("span", {}, keyOfPod(each)), make("div", { class: "quiet" }, `${each.reason}, since ${clock(each.at)}`),
  ], (child, each) => {
    const key = keyOfPod(each);
    child.id = `pod-${key}`;
    child.setAttribute("role", "option");
    child.setAttribute("aria-selected", String(key === chosen));
    child.classList.toggle("active", key === active);
  });
  if (active) $("pods").setAttribute("aria-activedescendant", `pod-${active}`); else $("pods").removeAttribute("aria-activedescendant");
  const count = Object.values(waiting.more).reduce((sum, each) => sum + each, waiting.items.length);
  $("waiting-title").textContent = `Waiting: ${count}`;
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
  const asked = chosen;
  askedAt = Date.now();
  let found;
  try { found = await ask("why", { pod: asked }); } catch (error) { found = { error: error.message || "no answer" }; }
  if (asked !== chosen) return;
  why = found;
  mark(why.blocked ?? []);
  showWhy();
}

function mark(found) {
  const kept = places[place];
  places = found;
  place = kept ? found.findIndex((each) => each[0] === kept[0] && each[1] === kept[1]) : -1;
  blocked = new Map();
  for (const [node, gpu, starts] of found) {
    if (!blocked.has(node)) blocked.set(node, new Map());
    blocked.get(node).set(gpu, new Set(starts));
  }
  for (const section of sections.values()) if (section.filled) fill(section);
}

function showWhy() {
  $("why").hidden = !chosen;
  if (!chosen) { $("why").replaceChildren(); return; }
  const said = waiting.items.find((each) => keyOfPod(each) === chosen);
  const parts = [make("h3", {}, chosen)];
  if (why?.error) parts.push(make("p", { class: "bad" }, why.error));
  for (const each of why?.findings ?? []) {
    parts.push(make("p", {}, make("strong", {}, each.reason), `: ${each.message}`, each.remedy ? make("span", { class: "quiet" }, ` → ${each.remedy}`) : ""));
  }
  if (!why?.findings?.length && said) parts.push(make("p", {}, make("strong", {}, said.reason), `: ${said.message}`));
  if (!why) parts.push(make("p", { class: "quiet" }, "asking …"));
  if (why?.wanted?.length) parts.push(make("p", { class: "quiet" }, `wanted: ${why.wanted.join(", ")}`));
  if (why?.unread?.length) parts.push(make("p", { class: "quiet" }, `not allowed to read: ${why.unread.join(", ")}`));
  const buttons = make("div", { class: "buttons" });
  if (places.length) {
    const rest = why?.more ? ` (and ${why.more} more)` : "";
    parts.push(make("p", { id: "places" }, placeText() + rest));
    buttons.append(make("button", { type: "button", id: "previous", onclick: () => go(-1) }, "Previous"), make("button", { type: "button", id: "next", onclick: () => go(1) }, "Next GPU in the way"));
  }
  buttons.append(make("button", { type: "button", onclick: () => choose(null) }, "Close"));
  for (const each of why?.events ?? []) parts.push(make("p", { class: "quiet" }, `event of ${each.source || "nobody"}, or of whoever may write events: ${each.reason}: ${each.message}`));
  const focused = $("why").contains(document.activeElement) ? document.activeElement.id : "";
  $("why").replaceChildren(parts[0], buttons, ...parts.slice(1));
  if (focused) $(focused)?.focus();
}

const placeText = () => (place < 0 ? `${places.length} GPUs have somebody in the way, marked ▲` : `${place + 1} of ${places.length}: ${places[place][0]} ${places[place][1]}`);

function go(step) {
  if (!places.length) return;
  place = place < 0 && step < 0 ? places.length - 1 : (place + step + places.length) % places.length;
  const section = sections.get(places[place][0]);
  for (const each of sections.values()) if (each.filled) fill(each);
  if (section) {
    fill(section);
    (section.querySelector(".here") ?? section).scrollIntoView({ block: "center" });
  }
  showWhy();
}

// --- the rest ---------------------------------------------------------------------------------------

function showStatus() {
  const lost = lostAt !== null, stale = latest.stale ?? [], loading = latest.loading ?? [];
  const text = lost ? `not connected since ${lostAt.toLocaleTimeString()}: ${latest.error}`
    : stale.length ? `the cluster does not answer: ${stale.join(", ")} may be old`
      : latest.backlog ? `loading ${latest.backlog} nodes`
      : loading.length ? `loading ${loading.join(", ")}` : "live";
  $("status").classList.toggle("lost", lost || stale.length > 0);
  if ($("status").textContent !== text) $("status").textContent = text;
}

function showNote() {
  const kinds = latest.hidden ?? [];
  $("note").hidden = !kinds.length;
  $("note").textContent = kinds.length ? `You may not list ${kinds.join(", ")} everywhere: only those of the namespace of kubectl mig ui -n are shown, as far as you may.` : "";
}

function showAll() { showNodes(); showWaiting(); showLine(); showNote(); }

$("state").append(...Object.entries(STATES).map(([name, text]) => make("option", { value: name }, `${name}: ${text}`)));
$("legend").append(...[["s1", "1g"], ["s2", "2g"], ["s3", "3g"], ["s4", "4g"], ["s7", "7g or whole"], ["ready", "made, free"], ["odd", "needs a look"], ["free", "free"], ["blocks", "▲ in the way of who is chosen"]]
  .map(([kind, text]) => make("li", {}, make("i", { class: kind }), ` ${text}`)));
$("filters").addEventListener("submit", (event) => event.preventDefault());
$("filters").addEventListener("reset", () => setTimeout(showAll));
for (const name of ["namespace", "product", "state"]) $(name).addEventListener("change", showAll);
let typing = 0;
$("search").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(showAll, 120); });
$("pods").addEventListener("click", (event) => {
  const option = event.target.closest("li");
  if (option) { active = option.dataset.key; choose(chosen === active ? null : active); }
});
$("pods").addEventListener("keydown", (event) => {
  const keys = [...$("pods").children].map((child) => child.dataset.key), index = keys.indexOf(active);
  const to = { ArrowDown: index + 1, ArrowUp: index - 1, Home: 0, End: keys.length - 1 }[event.key];
  if (to !== undefined && keys.length) {
    active = keys[Math.max(0, Math.min(keys.length - 1, to))];
    showWaiting();
    $(`pod-${active}`).scrollIntoView({ block: "nearest" });
  } else if ((event.key === "Enter" || event.key === " ") && active) choose(chosen === active ? null : active);
  else return;
  event.preventDefault();
});
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") { if (chosen) choose(null); else $("filters").reset(); return; }
  if (event.target.closest("input, select")) return;
  const act = { "/": () => $("search").focus(), w: () => $("pods").focus(), n: () => go(1), p: () => go(-1) }[event.key];
  if (act) { event.preventDefault(); act(); }
});
addEventListener("hashchange", takeToken);

takeToken();
token ||= sessionStorage.getItem("token") ?? "";
poll();
