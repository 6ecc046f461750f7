package lockset.interop;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.time.Duration;
import java.util.Arrays;
import org.redisson.RedissonRedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.BaseConfig;
import org.redisson.config.Config;

/** What is not in every version of Redisson, or not at the same place: found by its name. */
final class Versions {
    private Versions() {}

    /** Before there was a setting it was five minutes. */
    static void fairLockWaitTimeout(Config config, long millis) {
        if (has(config, "setFairLockWaitTimeout")) {
            call(config, "setFairLockWaitTimeout", millis);
        }
    }

    static void retryDelay(BaseConfig<?> server, int millis) {
        if (has(server, "setRetryDelay")) {
            call(server, "setRetryDelay", make("org.redisson.config.ConstantDelay", Duration.ofMillis(millis)));
        } else {
            call(server, "setRetryInterval", millis);
        }
    }

    static void prefix(Config config, BaseConfig<?> server, String prefix) {
        Object owner = has(config, "setNameMapper") ? config : server;
        Class<?> mapper = Arrays.stream(owner.getClass().getMethods())
                .filter(method -> method.getName().equals("setNameMapper"))
                .findFirst()
                .orElseThrow()
                .getParameterTypes()[0];
        call(owner, "setNameMapper", Proxy.newProxyInstance(
                mapper.getClassLoader(), new Class<?>[] {mapper}, (self, method, args) -> switch (method.getName()) {
                    case "map" -> prefix + args[0];
                    case "unmap" -> ((String) args[0]).substring(prefix.length());
                    default -> prefix;
                }));
    }

    static RLock fencedLock(RedissonClient redisson, String name) {
        try {
            var method = RedissonClient.class.getMethod("getFencedLock", String.class);
            return (RLock) method.invoke(redisson, name);
        } catch (ReflectiveOperationException error) {
            throw new UnsupportedOperationException("this Redisson has no fenced locks", error);
        }
    }

    /** Deprecated, and still in use. */
    @SuppressWarnings("deprecation")
    static RLock quorum(RLock[] members) {
        return new RedissonRedLock(members);
    }

    /** Calls the method of this name with so many arguments. */
    static Object call(Object target, String name, Object... args) {
        var found = Arrays.stream(target.getClass().getMethods())
                .filter(method -> method.getName().equals(name) && method.getParameterCount() == args.length)
                .filter(method -> !method.isBridge())
                .findFirst()
                .orElseThrow();
        try {
            return found.invoke(target, args);
        } catch (InvocationTargetException error) {
            throw new IllegalStateException(error.getCause());
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
    }

    private static boolean has(Object target, String name) {
        return Arrays.stream(target.getClass().getMethods()).anyMatch(method -> method.getName().equals(name));
    }

    private static Object make(String type, Object arg) {
        try {
            return Class.forName(type).getConstructor(arg.getClass()).newInstance(arg);
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
    }
}
