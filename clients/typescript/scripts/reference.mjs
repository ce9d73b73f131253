// Writes REFERENCE.md from the types of a build: everything that each entry of the package exports, with its comments. With `--check`
// it only compares.
import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import ts from "typescript";

const root = new URL("../", import.meta.url);
const target = new URL("REFERENCE.md", root);
const manifest = JSON.parse(readFileSync(new URL("package.json", root), "utf8"));
const entries = Object.entries(manifest.exports).filter(([, entry]) => entry.types);
const fileOf = ({ types }) => fileURLToPath(new URL(types, root));
const program = ts.createProgram(entries.map(([, entry]) => fileOf(entry)), { module: ts.ModuleKind.NodeNext, moduleResolution: ts.ModuleResolutionKind.NodeNext });
const checker = program.getTypeChecker();

/** A declaration as it stands in the types, without what is private. */
function render(declaration) {
  const statement = ts.isVariableDeclaration(declaration) ? declaration.parent.parent : declaration;
  const lines = statement.getSourceFile().text.slice(statement.getFullStart(), statement.end).split("\n");
  const shown = lines.filter((line) => !/^\s*(#private|private )|^import |^export \{/.test(line));
  return shown.join("\n").replace(/^\/\/.*$/gm, "").replace(/^export (declare )?/gm, "").replace(/\n{2,}/g, "\n").trim();
}

function renderEntry([path, entry]) {
  const module = checker.getSymbolAtLocation(program.getSourceFile(fileOf(entry)));
  const symbols = checker.getExportsOfModule(module).map((symbol) => (symbol.flags & ts.SymbolFlags.Alias ? checker.getAliasedSymbol(symbol) : symbol));
  const sorted = symbols.sort((a, b) => (a.name < b.name ? -1 : 1));
  const parts = sorted.flatMap(({ name, declarations = [] }) => [`### ${name}`, "", "```ts", ...declarations.map(render), "```", ""]);
  return [`## semel${path.slice(1)}`, "", ...parts];
}

const head = ["# What the package exports", "", "Written from the types by `npm run reference`: do not edit.", ""];
const text = [...head, ...entries.flatMap(renderEntry)].join("\n");
if (!process.argv.includes("--check")) writeFileSync(target, text);
else if (readFileSync(target, "utf8") !== text) {
  console.error("REFERENCE.md is not what the types say: run `npm run reference`");
  process.exit(1);
}
