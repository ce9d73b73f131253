// What is shown: the service's posts with what waits laid over them. Pure.

export interface Comment {
  id: string;
  author: string;
  name: string;
  words: string;
}

export interface Post {
  id: string;
  author: string;
  name: string;
  words: string;
  made_at: string;
  /** Who likes it. */
  likes: string[];
  comments: Comment[];
}

/** An action that is not confirmed yet. */
export interface Waiting {
  id: string;
  operation: string;
  post: string;
  body: { id?: string; words?: string };
  status: "pending" | "failed";
  reason: string;
}

/** A post as it is shown, with the actions on it that are not confirmed. */
export interface Shown extends Post {
  isOptimistic: boolean;
  waiting: Waiting[];
}

/** Newest first; the posts that were only just written here, above all. What failed changes nothing but is shown. */
export function overlay(posts: Post[], waiting: Waiting[], me: { id: string; name: string }): Shown[] {
  const shown = new Map<string, Shown>();
  for (const { id, post, body, operation } of waiting) {
    if (operation !== "create_post" || posts.some((known) => known.id === post)) continue;
    const made = { id: post, author: me.id, name: me.name, words: body.words ?? "", made_at: "", likes: [], comments: [] };
    shown.set(post || id, { ...made, isOptimistic: true, waiting: [] });
  }
  const ordered = [...shown.values()].reverse();
  const known = [...posts].sort((one, other) => other.made_at.localeCompare(one.made_at));
  for (const post of known) shown.set(post.id, { ...post, isOptimistic: false, waiting: [] });
  for (const action of waiting) {
    const post = shown.get(action.post) ?? orphan(action);
    shown.set(post.id, apply(post, action, me));
  }
  const ids = [...new Set([...ordered, ...known].map(({ id }) => id))];
  const rest = [...shown.keys()].filter((id) => !ids.includes(id));
  return [...rest, ...ids].map((id) => shown.get(id)!).filter((post) => !isRemoved(post));
}

/** An action on a post that is not there any more. */
function orphan(action: Waiting): Shown {
  return { id: action.post, author: "", name: "", words: "This post is not there any more.", made_at: "", likes: [], comments: [], isOptimistic: false, waiting: [] };
}

function isRemoved(post: Shown): boolean {
  return post.waiting.some(({ operation, status }) => operation === "delete_post" && status === "pending");
}

function apply(post: Shown, action: Waiting, me: { id: string; name: string }): Shown {
  const next = { ...post, waiting: [...post.waiting, action] };
  if (action.status === "failed") return next;
  const { id, words } = action.body;
  if (action.operation === "like_post" && !next.likes.includes(me.id)) next.likes = [...next.likes, me.id];
  const isThere = next.comments.some((comment) => comment.id === id);
  if (action.operation === "create_comment" && id && words && !isThere)
    next.comments = [...next.comments, { id, author: me.id, name: me.name, words }];
  return next;
}
