// Draws posts. Elements of posts that stay are kept, so that what is being typed is not lost.
import type { Shown, Waiting } from "./view.js";

export interface Hands {
  me: string;
  news: Set<string>;
  like(post: string): void;
  comment(post: string, words: string): void;
  remove(post: string): void;
  retry(action: Waiting): void;
  discard(action: Waiting): void;
}

const NAMES: Record<string, string> = { create_post: "Post", like_post: "Like", create_comment: "Comment", delete_post: "Deletion" };

export function element(id: string): HTMLElement {
  return document.getElementById(id)!;
}

function make(tag: string, className = "", text = ""): HTMLElement {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}

function button(text: string, onClick: () => void): HTMLButtonElement {
  const made = make("button", "quiet", text) as HTMLButtonElement;
  made.type = "button";
  made.addEventListener("click", onClick);
  return made;
}

export function renderPosts(posts: Shown[], hands: Hands): void {
  const list = element("posts");
  const known = new Map([...list.children].map((child) => [(child as HTMLElement).dataset.id, child as HTMLElement]));
  list.replaceChildren(
    ...posts.map((post) => {
      const item = known.get(post.id) ?? makeItem(post.id, hands);
      fill(item, post, hands);
      return item;
    }),
  );
  if (posts.length === 0) list.append(make("li", "empty", "Nothing here yet. Write the first post."));
}

/** A post's element: what changes is in its first part, the field for a comment stays. */
function makeItem(id: string, hands: Hands): HTMLElement {
  const item = make("li", "post");
  item.dataset.id = id;
  const form = make("form", "comment-form row") as HTMLFormElement;
  form.innerHTML = '<input name="words" aria-label="A comment" placeholder="Comment" maxlength="2000" autocomplete="off"><button>Send</button>';
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const words = String(new FormData(form).get("words")).trim();
    if (words) hands.comment(id, words);
    form.reset();
  });
  item.append(make("div", "content"), form);
  return item;
}

function fill(item: HTMLElement, post: Shown, hands: Hands): void {
  const isNew = hands.news.has(post.id) && !!post.author;
  item.classList.toggle("new", isNew);
  item.classList.toggle("gone", !post.author);
  const head = make("div", "head");
  head.append(make("b", "", post.name), make("span", "", post.made_at ? new Date(post.made_at).toLocaleString([], { dateStyle: "medium", timeStyle: "short" }) : "just now"));
  if (isNew) head.append(make("span", "badge", "new"));
  const actions = make("div", "row");
  const likes = button(`♥ ${post.likes.length}`, () => hands.like(post.id));
  likes.setAttribute("aria-label", `Like, ${post.likes.length} so far`);
  likes.setAttribute("aria-pressed", String(post.likes.includes(hands.me)));
  likes.disabled = post.likes.includes(hands.me);
  actions.append(likes);
  if (post.author === hands.me) actions.append(button("Delete", () => hands.remove(post.id)));
  const parts = [head, make("p", "words", post.words), actions];
  if (post.comments.length > 0) {
    const comments = make("ul", "comments");
    for (const { name, words } of post.comments) {
      const line = make("li");
      line.append(make("b", "", name), ` ${words}`);
      comments.append(line);
    }
    parts.push(comments);
  }
  item.querySelector(".content")!.replaceChildren(...parts, ...post.waiting.map((action) => statusOf(action, hands)));
}

/** Why an action waits or failed, and what one can do about it. */
function statusOf(action: Waiting, hands: Hands): HTMLElement {
  const line = make("div", `status ${action.status}`);
  const name = NAMES[action.operation] ?? "Action";
  line.append(make("span", "", `${name} ${action.status === "failed" ? "failed" : "waiting"}. ${action.reason}`));
  line.append(button("Retry", () => hands.retry(action)), button("Discard", () => hands.discard(action)));
  return line;
}
