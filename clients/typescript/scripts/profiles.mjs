// Writes src/contract/profiles.ts and rules.ts from the tables of spec/contract.md. With `--check` it only compares. The rules are
// a file of their own, since a page that only accepts messages never reads them.
// It reads the tables that concern a sender: classification, keys, waits, ages and lanes. It decides nothing.
import { readFileSync, writeFileSync } from "node:fs";

const spec = readFileSync(new URL("../../../spec/contract.md", import.meta.url), "utf8");
const folder = new URL("../src/contract/", import.meta.url);
const HEAD = "Generated from spec/contract.md by `npm run generate`: do not edit.";

const UNITS = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };

function millis(text) {
  const parts = [...text.matchAll(/(\d+)(ms|s|m|h|d)/g)];
  if (parts.length === 0 || parts.map((part) => part[0]).join("") !== text) throw new Error(`no duration: ${text}`);
  return parts.reduce((sum, [, number, unit]) => sum + Number(number) * UNITS[unit], 0);
}

function section(title) {
  const found = spec.split(/^## /m).find((part) => part.startsWith(`${title}\n`));
  if (!found) throw new Error(`spec/contract.md has no section ${title}`);
  return found;
}

function rows(text) {
  const lines = text.split("\n").filter((line) => line.startsWith("| ") && !line.startsWith("| ---"));
  return lines.map((line) => line.slice(1, -1).split("|").map((cell) => cell.trim()));
}

/** The codes for which `*waiting*` and `*spent*` stand. */
function codeLists(text) {
  const flat = text.replace(/\s+/g, " ");
  const list = (from, to) => {
    const between = flat.slice(flat.indexOf(from), flat.indexOf(to, flat.indexOf(from)));
    return [...between.matchAll(/`([a-z-]+)`/g)].map(([, code]) => code);
  };
  return { waiting: list("*waiting* stands", "; *spent*"), spent: list("*spent* for", ". ") };
}

function readClass(text) {
  const [, name, reason, max, then] = /^([a-z-]+)(?:\(`([a-z0-9-]+)`\)|\(max=(\d+)\))?(?: then (.+))?$/.exec(text) ?? [];
  if (!name) throw new Error(`no class: ${text}`);
  if (max) return `${name}:${max}:${readClass(then)}`;
  return reason ? `${name}:${reason}` : name;
}

/** Rules such as "409 `a`, `b` success": [from, to, codes, class]. */
function readRules(text, lists) {
  const rules = [];
  for (const rule of text.split(/ · |, (?=any other \d)/)) {
    const [, statuses] = /^((?:\d+(?:-\d+)?,? )*)/.exec(rule.trim().replace(/^any other /, ""));
    const rest = rule.trim().replace(/^any other /, "").slice(statuses.length);
    const [, codes] = /^((?:(?:`[a-z-]+`|\*\w+\*),? )*)/.exec(rest);
    const named = [...codes.matchAll(/`([a-z-]+)`|\*(\w+)\*/g)].flatMap(([, code, list]) => code ?? lists[list]);
    const spans = [...statuses.matchAll(/(\d+)(?:-(\d+))?/g)];
    const found = readClass(rest.slice(codes.length));
    if (spans.length === 0) rules.push([0, 999, [], found]);
    for (const [, from, to] of spans) rules.push([Number(from), Number(to ?? from), named, found]);
  }
  return rules;
}

function classification() {
  const text = section("Classification");
  const lists = codeLists(text);
  const tables = {};
  for (const [names, cell] of rows(text)) {
    if (!names.startsWith("`") || !cell.includes("dead(")) continue;
    const asOther = /^as `(\w+)`, but (.+)$/.exec(cell);
    const [own, ...exceptions] = cell.split(/\. (?=`\w+`: )/);
    for (const [, name] of names.matchAll(/`(\w+)`/g)) {
      const exception = exceptions.find((text) => text.startsWith(`\`${name}\`: `))?.replace(/^`\w+`: /, "");
      const base = asOther ? tables[asOther[1]] : readRules(own, lists);
      tables[name] = replaceConflicts(base, asOther?.[2] ?? exception, lists);
    }
  }
  return tables;
}

/** The base with other rules for 409. */
function replaceConflicts(base, text, lists) {
  if (!text) return base;
  const at = base.findIndex(([from]) => from === 409);
  const other = base.filter(([from]) => from !== 409);
  return [...other.slice(0, at), ...readRules(text, lists), ...other.slice(at)];
}

function readWaits(text) {
  const [, base, factor, cap, rest] = /^(\w+) × (\d+) up to (\w+)(?:, (.+))?$/.exec(text);
  const ratio = /±(\d+) %/.exec(rest ?? "");
  const jitter = ratio ? Number(ratio[1]) / 100 : rest === "full jitter" ? "full" : 0;
  return { base: millis(base), factor: Number(factor), cap: millis(cap), jitter };
}

function profiles() {
  const table = rows(section("Profiles"));
  const names = table[0].slice(1).map((cell) => cell.replaceAll("`", ""));
  const setting = (name, at) => table.find((row) => row[0] === name)[at + 1];
  const rules = classification();
  return names.map((name, at) => {
    const header = /header:([A-Za-z-]+)/.exec(setting("key source", at))[1];
    const burst = /^(\d+), (\w+)$/.exec(setting("burst, then every", at));
    const guard = /`\/(\w+)`/.exec(setting("staleness guard", at));
    const window = millis(setting("retry window", at));
    return {
      name,
      header,
      format: setting("format", at),
      mint: setting("minted keys", at),
      isFifo: setting("lanes", at) !== "independent",
      isDropped: setting("given up", at) === "drop",
      window,
      hasMargin: millis(setting("record lives", at)) > window,
      ...(guard ? { generatedAt: guard[1] } : {}),
      schedule: {
        ...readWaits(setting("sender waits", at)),
        ...(burst ? { burst: Number(burst[1]), period: millis(burst[2]) } : {}),
        maxAge: millis(setting("max age", at)),
      },
      rules: rules[name],
    };
  });
}

/** Rules as one short text: `409 in-flight,superseded retry-after|500-599 retry`. */
function renderRules(rules) {
  const merged = [];
  for (const [from, to, codes, action] of rules) {
    const status = from === to ? `${from}` : `${from}-${to}`;
    const rest = `${codes.length ? `${codes.join()} ` : ""}${action}`;
    if (merged.at(-1)?.rest === rest) merged.at(-1).status += `,${status}`;
    else merged.push({ status, rest });
  }
  return merged.map(({ status, rest }) => `${status} ${rest}`).join("|");
}

function render() {
  const all = profiles();
  const names = all.map(({ name }) => name);
  const written = (profile) => JSON.stringify(profile).replace(/"(\w+)":/g, "$1: ").replaceAll(",", ", ");
  return {
    "profiles.ts": [
      `// The sender's half of every profile. ${HEAD}`,
      'import type { Profile } from "./profile.js";',
      "",
      ...all.map(({ rules, ...profile }) => `export const ${profile.name}: Profile = ${written(profile)};`),
      "",
      `export const profiles = { ${names.join(", ")} };`,
      "",
    ],
    "rules.ts": [
      `// How every profile's answers are read. ${HEAD}`,
      ...all.map(({ name, rules }) => `export const ${name} = "${renderRules(rules)}";`),
      "",
      `export const rules: Record<string, string> = { ${names.join(", ")} };`,
      "",
    ],
  };
}

for (const [name, lines] of Object.entries(render())) {
  const [target, text] = [new URL(name, folder), lines.join("\n")];
  if (!process.argv.includes("--check")) writeFileSync(target, text);
  else if (readFileSync(target, "utf8") !== text) {
    console.error(`src/contract/${name} is not what spec/contract.md says: run \`npm run generate\``);
    process.exitCode = 1;
  }
}
